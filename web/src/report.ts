/** Figures of numbers: a table, and the facts of a model with its learning curves. */
import { at } from "./arrays.js";
import type { Series } from "./client.js";
import type { Figure } from "./figures.js";
import type { Palette } from "./palette.js";
import { fitText, measureText, type Surface } from "./surface.js";

const ROW_HEIGHT = 26;
const WIDEST_COLUMN = 320;

/** A table with a head. Numbers are aligned at their end. */
export class TableFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly widths: number[];

  constructor(
    readonly head: readonly string[],
    readonly rows: readonly (readonly string[])[],
  ) {
    this.widths = head.map((name, column) =>
      Math.min(WIDEST_COLUMN, [name, ...rows.map((row) => at(row, column))].reduce((width, text) => Math.max(width, measureText(text, 14)), 0)),
    );
    this.width = this.widths.reduce((sum, width) => sum + width + 24, 12);
    this.height = (rows.length + 1) * ROW_HEIGHT + 24;
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    [this.head, ...this.rows].forEach((row, index) => {
      const y = 12 + (index + 0.5) * ROW_HEIGHT;
      let x = 12;
      row.forEach((text, column) => {
        const width = at(this.widths, column);
        const style = { size: 14, color: index ? palette.ink : palette.muted, bold: !index };
        const isNumber = /^[−\d.%–∞\s]+$/u.test(this.rows[0]?.[column] ?? "");
        surface.text(isNumber ? x + width : x, y, fitText(text, 14, width), { ...style, anchor: isNumber ? "end" : "start" });
        x += width + 24;
      });
      surface.line(12, y + ROW_HEIGHT / 2, this.width - 12, y + ROW_HEIGHT / 2, palette.line, 1);
    });
  }
}

export interface Curve {
  name: string;
  points: readonly (readonly [x: number, y: number])[];
  firstStep: number;
  lastStep: number;
  low: number;
  high: number;
}

/** Format the end of an axis in a few characters. */
export function formatTick(value: number): string {
  const isSmall = value !== 0 && Math.abs(value) < 0.001;
  return (isSmall ? value.toExponential(1) : value.toPrecision(3)).replaceAll("-", "−");
}

/** Scale a learning curve to a width and a height; null with less than two points. */
export function scaleCurve(series: Series, width: number, height: number): Curve | null {
  const points = series.points.filter(([, value]) => Number.isFinite(value));
  if (points.length < 2) return null;
  const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
  const [firstStep, lastStep] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const scaled = points.map(([step, value]): [number, number] => [
    (width * (step - firstStep)) / (lastStep - firstStep || 1),
    height - (height * (value - low)) / (high - low || 1),
  ]);
  return { name: series.name, points: scaled, firstStep, lastStep, low, high };
}

/** The facts of a model as lines of text, and its learning curves below. */
export class ModelFigure implements Figure {
  readonly width = 900;
  readonly height: number;
  private readonly curves: Curve[];

  constructor(
    readonly title: string,
    readonly lines: readonly string[],
    series: readonly Series[],
  ) {
    this.curves = series.map((each) => scaleCurve(each, 360, 120)).filter((curve) => curve !== null);
    this.height = 64 + lines.length * 24 + Math.ceil(this.curves.length / 2) * 190;
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    surface.text(20, 28, this.title, { size: 20, color: palette.ink, bold: true });
    this.lines.forEach((line, index) => surface.text(20, 60 + index * 24, fitText(line, 14, this.width - 40), { size: 14, color: palette.ink }));
    this.curves.forEach((curve, index) => {
      this.drawCurve(surface, palette, curve, 70 + (index % 2) * 440, 84 + this.lines.length * 24 + Math.floor(index / 2) * 190);
    });
  }

  private drawCurve(surface: Surface, palette: Palette, curve: Curve, left: number, top: number): void {
    const muted = { size: 12, color: palette.muted };
    surface.text(left, top - 14, curve.name, { size: 14, color: palette.ink, bold: true });
    surface.line(left, top + 120, left + 360, top + 120, palette.line, 1);
    surface.text(left - 8, top + 6, formatTick(curve.high), { ...muted, anchor: "end" });
    surface.text(left - 8, top + 118, formatTick(curve.low), { ...muted, anchor: "end" });
    surface.text(left, top + 136, String(curve.firstStep), muted);
    surface.text(left + 360, top + 136, `step ${curve.lastStep}`, { ...muted, anchor: "end" });
    curve.points.slice(1).forEach(([x, y], index) => {
      const [fromX, fromY] = at(curve.points, index);
      surface.line(left + fromX, top + fromY, left + x, top + y, palette.accent, 2);
    });
  }
}
