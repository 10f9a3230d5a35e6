/** Color scales: which color a number has, and the legend that shows it. */
import { at } from "./arrays.js";
import type { Figure } from "./figures.js";
import { levelOf, type Palette } from "./palette.js";
import { measureText, type Surface } from "./surface.js";

/** The colors of a map: from 0 to 1, from 0 to the largest of each row, or signed. */
export type Colors = "fixed" | "row" | "signed";

/** The numbers at equal distances of a scale, and its colors. */
export interface Scale {
  ticks: readonly string[];
  ramp(palette: Palette): readonly string[];
}

export function createScale(colors: Colors): Scale {
  const ticks = { fixed: ["0", "0.5", "1"], row: ["0", "row maximum"], signed: ["−1", "0", "1"] };
  return { ticks: ticks[colors], ramp: (palette) => (colors === "signed" ? palette.diverging : palette.ramp) };
}

const LEVELS = 64;

/** The legend of a map: a bar with its colors, and the numbers below it. */
export class ScaleFigure implements Figure {
  readonly width: number;
  readonly height: number;
  /** The distances of the bar from both ends: the numbers are centered below its ends. */
  private readonly margins: readonly [number, number];
  private readonly thickness: number;

  constructor(
    readonly scale: Scale,
    readonly fontSize: number,
  ) {
    const { ticks } = scale;
    const widths = ticks.map((tick) => measureText(tick, fontSize));
    this.margins = [at(widths, 0) / 2, at(widths, widths.length - 1) / 2];
    const bar = Math.max(8 * fontSize, 1.5 * widths.reduce((sum, width) => sum + width, 0));
    this.width = this.margins[0] + bar + this.margins[1];
    this.thickness = 0.8 * fontSize;
    this.height = this.thickness + 1.3 * fontSize;
  }

  draw(surface: Surface, palette: Palette): void {
    const { scale, fontSize, thickness } = this;
    const [left] = this.margins;
    const width = this.width - left - this.margins[1];
    const ramp = scale.ramp(palette);
    for (let level = 0; level < LEVELS; level++) {
      // Up to the end, so that there are no seams.
      const start = (width * level) / LEVELS;
      surface.rect(left + start, 0, width - start, thickness, at(ramp, levelOf(level / (LEVELS - 1))));
    }
    surface.outline(left, 0, width, thickness, palette.line, 1);
    scale.ticks.forEach((tick, index) => {
      const x = left + (width * index) / (scale.ticks.length - 1);
      surface.text(x, thickness + 0.75 * fontSize, tick, { size: fontSize, color: palette.muted, anchor: "middle" });
    });
  }
}
