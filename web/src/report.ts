/** Figures of numbers: a table, and the facts of a model with its learning curves. */
import { at } from "./arrays.js";
import type { Series } from "./client.js";
import type { Figure } from "./figures.js";
import type { Palette } from "./palette.js";
import { fitText, measureText, PlacedSurface, type Surface } from "./surface.js";
import { ROLE_NAMES } from "./trace.js";

/** The widest column, and the distance of columns and rows, relative to the size of the text. */
const [WIDEST_COLUMN, COLUMN_GAP, ROW_HEIGHT] = [23, 1.7, 1.9];

/** A table with a head. Numbers are aligned at their end. */
export class TableFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly widths: number[];

  constructor(
    readonly head: readonly string[],
    readonly rows: readonly (readonly string[])[],
    readonly fontSize: number,
  ) {
    const measure = (texts: readonly string[]): number => texts.reduce((width, text) => Math.max(width, measureText(text, fontSize)), 0);
    this.widths = head.map((name, column) => Math.min(WIDEST_COLUMN * fontSize, measure([name, ...rows.map((row) => at(row, column))]) * 1.08));
    this.width = this.widths.reduce((sum, width) => sum + width + COLUMN_GAP * fontSize, 24 - COLUMN_GAP * fontSize);
    this.height = (rows.length + 1) * ROW_HEIGHT * fontSize + 24;
  }

  draw(surface: Surface, palette: Palette): void {
    const { fontSize: size } = this;
    const rowHeight = ROW_HEIGHT * size;
    [this.head, ...this.rows].forEach((row, index) => {
      const y = 12 + (index + 0.5) * rowHeight;
      let x = 12;
      row.forEach((text, column) => {
        const width = at(this.widths, column);
        const style = { size, color: index ? palette.ink : palette.muted, bold: !index };
        const isNumber = /^[−\d.%–∞\s]+$/u.test(this.rows[0]?.[column] ?? "");
        surface.text(isNumber ? x + width : x, y, fitText(text, size, width), { ...style, anchor: isNumber ? "end" : "start" });
        x += width + COLUMN_GAP * size;
      });
      surface.line(12, y + rowHeight / 2, this.width - 12, y + rowHeight / 2, palette.line, 1);
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

/** Return the curves with names that differ: several may show the same value, of training and of the dev set, or of roles. */
export function nameCurves(curves: readonly Series[]): Series[] {
  return curves.map((curve) => {
    const isShared = curves.filter((each) => each.name === curve.name).length > 1;
    const which = curve.role ? ROLE_NAMES[curve.role].toLowerCase() : curve.validated ? "dev set" : "training";
    return { ...curve, name: `${curve.name.replaceAll("_", " ")}${isShared ? `, ${which}` : ""}` };
  });
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

const [CURVE_WIDTH, CURVE_HEIGHT] = [320, 120];

/** The facts of a model as lines of text, and its learning curves below. */
export class ModelFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly curves: Curve[];
  private readonly cellWidth: number;
  private readonly cellHeight: number;
  private readonly top: number;

  constructor(
    readonly title: string,
    readonly lines: readonly string[],
    series: readonly Series[],
    readonly fontSize: number,
  ) {
    this.curves = series.map((each) => scaleCurve(each, CURVE_WIDTH, CURVE_HEIGHT)).filter((curve) => curve !== null);
    this.cellWidth = CURVE_WIDTH + 7 * fontSize;
    this.cellHeight = CURVE_HEIGHT + 5 * fontSize;
    this.top = (4 + 1.7 * lines.length) * fontSize;
    this.width = 2 * this.cellWidth;
    this.height = this.top + Math.ceil(this.curves.length / 2) * this.cellHeight;
  }

  draw(surface: Surface, palette: Palette): void {
    const { fontSize: size, width } = this;
    surface.text(size, 1.5 * size, this.title, { size: 1.3 * size, color: palette.ink, bold: true });
    this.lines.forEach((line, index) => surface.text(size, (3.5 + 1.7 * index) * size, fitText(line, size, width - 2 * size), { size, color: palette.ink }));
    this.curves.forEach((curve, index) => {
      const [left, top] = [(index % 2) * this.cellWidth, this.top + Math.floor(index / 2) * this.cellHeight];
      this.drawCurve(new PlacedSurface(surface, left + 5 * size, top + 1.5 * size), palette, curve);
    });
  }

  /** Draw a curve with its name above and the ends of its axes outside. */
  private drawCurve(surface: Surface, palette: Palette, curve: Curve): void {
    const { fontSize } = this;
    const size = 0.85 * fontSize;
    const muted = { size, color: palette.muted };
    surface.text(0, -0.8 * fontSize, curve.name, { size: fontSize, color: palette.ink, bold: true });
    surface.line(0, CURVE_HEIGHT, CURVE_WIDTH, CURVE_HEIGHT, palette.muted, 1);
    surface.line(0, 0, 0, CURVE_HEIGHT, palette.muted, 1);
    surface.text(-0.5 * size, 0.5 * size, formatTick(curve.high), { ...muted, anchor: "end" });
    surface.text(-0.5 * size, CURVE_HEIGHT - 0.4 * size, formatTick(curve.low), { ...muted, anchor: "end" });
    surface.text(0, CURVE_HEIGHT + size, String(curve.firstStep), muted);
    surface.text(CURVE_WIDTH / 2, CURVE_HEIGHT + size, "step", { ...muted, anchor: "middle" });
    surface.text(CURVE_WIDTH, CURVE_HEIGHT + size, String(curve.lastStep), { ...muted, anchor: "end" });
    curve.points.slice(1).forEach(([x, y], index) => surface.line(...at(curve.points, index), x, y, palette.accent, 2));
  }
}
