/** The computation of attention as one diagram: a row for each key, a column for each stage, and the context at the end. */
import { at, Matrix } from "./arrays.js";
import type { Row, Stage, Term } from "./equation.js";
import type { Cell, Figure } from "./figures.js";
import { levelOf, type Palette } from "./palette.js";
import { fitText, measureText, type Surface, type TextStyle } from "./surface.js";
import { formatNumber, formatPercent, labelToken } from "./trace.js";

export type Order = "weight" | "position";

/** A head: its computation, and the keys that are shown. The others are one row. */
export interface Lane {
  name: string;
  row: Row;
  slots: readonly number[];
}

/** Return how many keys of each head are drawn. A canvas has a largest size, so not all keys of a long source are. */
export function limitKeys(order: Order, isOverview: boolean, hasTail: boolean): number {
  if (isOverview) return hasTail ? 24 : 3;
  return hasTail ? 500 : order === "weight" ? 12 : 24;
}

/** Return the keys with the largest weights, in an order. */
export function chooseSlots(weights: Float64Array, order: Order, limit: number): number[] {
  const sorted = [...weights.keys()].sort((left, right) => at(weights, right) - at(weights, left) || left - right);
  // One row for the others is worth it if there are several.
  const shown = sorted.length <= limit + 2 ? sorted : sorted.slice(0, limit);
  return order === "weight" ? shown : shown.sort((left, right) => left - right);
}

/** Return the stages that are drawn for several heads: those with one number for each key, and the last. */
export function summarize(row: Row): Row {
  const stages = row.stages.filter((each, index) => each.values.columns === 1 || index === row.stages.length - 1);
  return { ...row, stages: stages.map((each) => ({ ...each, total: each.total && isNumber(each.total) ? null : each.total })) };
}

/** Return numbers between those of two computations: a share of 1 is the second. Stages that differ are those of the second. */
export function mixRows(before: Row, after: Row, share: number): Row {
  const mix = (from: Float64Array, to: Float64Array): Float64Array =>
    to.map((value, index) => (Number.isFinite(value - (from[index] ?? NaN)) ? value * share + at(from, index) * (1 - share) : value));
  const stages = after.stages.map((each) => {
    const old = before.stages.find(({ name, values }) => name === each.name && values.rows === each.values.rows && values.columns === each.values.columns);
    return old ? { ...each, values: new Matrix(each.values.rows, each.values.columns, mix(old.values.data, each.values.data)) } : each;
  });
  return { stages, weights: mix(before.weights, after.weights), context: after.context && before.context ? mix(before.context, after.context) : after.context };
}

/** The space of a diagram, and what is marked in it. */
export interface FlowFrame {
  width: number;
  fontSize: number;
  /** The focused key. */
  focus: number | null;
  /** The active stage. */
  stage: number | null;
  /** Whether the stages after the active one are not drawn yet. */
  isPartial?: boolean;
}

export interface FlowOptions extends FlowFrame {
  /** One head, or several with the same stages. */
  lanes: readonly Lane[];
  keys: readonly string[];
  /** The keys whose tokens were masked in the source. */
  struck: ReadonlySet<number>;
  /** The token that is predicted from the context. */
  output: string;
}

/** The distance of columns, and the smallest columns of colors and of bars, relative to the size of the text. */
const [GAP, STRIP, BAR] = [1.6, 5, 6.8];
/** The height of what enters a stage, and of a sum below it. */
const TERM = 1.55;

/** A row of the drawing: a key of a head, or the keys that are not shown (null). */
interface Line {
  lane: number;
  slot: number | null;
}

/** A stage, or the context after the last one. */
interface Column {
  band: number;
  x: number;
  width: number;
}

/** If the figure is narrow, its columns are in several bands, one below the other. */
interface Band {
  top: number;
  /** The space above the rows of a head for what enters its stages, and below them for sums. */
  inputs: number;
  totals: number;
}

export class FlowFigure implements Figure {
  readonly width: number;
  readonly height: number;
  readonly stages: readonly Stage[];
  readonly lines: readonly Line[];
  readonly columns: readonly Column[];
  readonly bands: readonly Band[];
  readonly left: number;
  readonly rowHeight: number;
  readonly gap: number;

  constructor(readonly options: FlowOptions) {
    const { lanes, fontSize } = options;
    this.width = options.width;
    this.stages = at(lanes, 0).row.stages;
    this.lines = lanes.flatMap(({ slots, row }, lane) => [...slots, ...(slots.length < row.weights.length ? [null] : [])].map((slot) => ({ lane, slot })));
    const longest = Math.max(...this.lines.map((line) => measureText(this.labelLine(line), fontSize)));
    this.left = Math.min(longest + 4 * fontSize, Math.max(8 * fontSize, 0.16 * options.width));
    this.gap = GAP * fontSize;
    // Up to 13 rows are comfortable; more are closer.
    this.rowHeight = fontSize * Math.max(1.5, Math.min(2, 26 / (this.lines.length / lanes.length)));
    this.columns = this.layOut();
    let top = 0;
    this.bands = Array.from({ length: at(this.columns, this.stages.length).band + 1 }, (_, band) => {
      const stages = this.stages.filter((_, index) => at(this.columns, index).band === band);
      const inputs = fontSize * Math.max(lanes.length > 1 ? TERM : 0.5, ...stages.map((each) => TERM * each.inputs.length));
      const totals = fontSize * (stages.some(({ total }) => total && isNumber(total)) ? TERM + 0.3 : 0.5);
      const start = top;
      top += 4.4 * fontSize + this.lines.length * this.rowHeight + lanes.length * (inputs + totals);
      return { inputs, totals, top: start };
    });
    this.height = top + (lanes.length > 1 ? 3 * fontSize : -fontSize);
  }

  /** Place as many columns as fit in each band, and stretch them. */
  private layOut(): Column[] {
    const { fontSize } = this.options;
    const space = this.width - this.left;
    let [band, used, widest] = [0, 0, 0];
    const columns = [...this.stages, null].map((stage) => {
      const width = (stage && stage.values.columns > 1 ? STRIP : BAR) * fontSize + this.gap;
      if (used > 0 && used + width > space) [band, used] = [band + 1, 0];
      const column = { band, x: used, width };
      used += width;
      widest = Math.max(widest, used);
      return column;
    });
    const scale = space / widest;
    return columns.map(({ band, x, width }) => ({ band, x: this.left + x * scale, width: width * scale - this.gap }));
  }

  labelKey(slot: number): string {
    return labelToken(this.options.keys[slot] ?? String(slot + 1));
  }

  labelLine({ lane, slot }: Line): string {
    if (slot !== null) return this.labelKey(slot);
    const { row, slots } = at(this.options.lanes, lane);
    return `${row.weights.length - slots.length} more`;
  }

  /** The middle of a line in a band. */
  y(band: number, line: number): number {
    const { lane } = at(this.lines, line);
    const { inputs, totals, top } = at(this.bands, band);
    return top + 3.4 * this.options.fontSize + (line + 0.5) * this.rowHeight + (lane + 1) * inputs + lane * totals;
  }

  /** The line and the stage at a point. */
  find(x: number, y: number): Cell | null {
    const band = this.bands.findLastIndex(({ top }) => y >= top);
    const row = this.lines.findIndex((_, line) => Math.abs(y - this.y(band, line)) <= this.rowHeight / 2);
    const after = this.stages.findLastIndex((_, index) => at(this.columns, index).band === band && x >= at(this.columns, index).x - this.gap / 2);
    // The labels belong to the first stage of the band.
    const column = after < 0 ? this.columns.findIndex((each) => each.band === band) : after;
    return band < 0 || row < 0 || column >= this.stages.length ? null : { row, column };
  }

  draw(surface: Surface, palette: Palette): void {
    new Drawing(this, surface, palette).draw();
  }
}

const isNumber = (term: Term): boolean => term.values.length === 1;

class Drawing {
  private readonly options: FlowOptions;
  private readonly size: number;

  constructor(
    private readonly figure: FlowFigure,
    private readonly surface: Surface,
    private readonly palette: Palette,
  ) {
    this.options = figure.options;
    this.size = this.options.fontSize;
  }

  draw(): void {
    const { figure } = this;
    const { stage: active, isPartial } = this.options;
    for (const band of figure.bands.keys()) this.drawLabels(band);
    const last = isPartial && active !== null ? active : figure.stages.length;
    figure.stages.forEach((stage, index) => {
      const column = at(figure.columns, index);
      this.drawHead(stage.name, stage.formula, column, index === active);
      if (index <= last) this.drawStage(index, column);
    });
    this.drawContext(at(figure.columns, figure.stages.length), last + 1 >= figure.stages.length);
  }

  private write(x: number, y: number, text: string, style: Partial<TextStyle> = {}): void {
    this.surface.text(x, y, text, { size: this.size, color: this.palette.ink, ...style });
  }

  private drawLabels(band: number): void {
    const { figure, size, palette } = this;
    const { left, rowHeight, lines } = figure;
    lines.forEach((line, index) => {
      const { slot, lane } = line;
      const y = figure.y(band, index);
      const isFocused = slot !== null && slot === this.options.focus;
      if (isFocused) this.surface.rect(0, y - rowHeight / 2, figure.width, rowHeight, palette.tint);
      const color = isFocused ? palette.accent : slot === null ? palette.muted : palette.ink;
      const mark = slot !== null && this.options.struck.has(slot) ? ({ line: "line-through", color: palette.edit } as const) : undefined;
      this.write(left - 1.6 * size, y, fitText(figure.labelLine(line), size, left - 3.4 * size), { color, anchor: "end", bold: isFocused, mark });
      if (slot !== null) this.write(2, y, String(slot + 1), { size: 0.8 * size, color: palette.muted });
      const isFirst = lines[index - 1]?.lane !== lane;
      if (isFirst && this.options.lanes.length > 1) this.write(2, y - rowHeight / 2 - 0.9 * size, at(this.options.lanes, lane).name, { bold: true });
    });
  }

  private drawHead(name: string, formula: string, { band, x, width }: Column, isActive: boolean): void {
    const { size, palette } = this;
    const { top } = at(this.figure.bands, band);
    if (isActive) this.surface.rect(x, top + 1, width, 3, palette.accent);
    this.write(x, top + size, fitText(name, size, width + 0.6 * this.figure.gap), { color: isActive ? palette.accent : palette.ink, bold: true });
    this.drawFormula(x, top + 2.5 * size, shorten(formula, size, width + 0.3 * this.figure.gap), palette.muted);
  }

  private drawStage(index: number, column: Column): void {
    const { figure } = this;
    const { lanes } = this.options;
    const stages = lanes.map((lane) => at(lane.row.stages, index));
    const range = findRange(stages);
    stages.forEach((stage, lane) => {
      const rows = this.findRows(lane, column.band);
      this.drawInputs(stage.inputs, rows, column);
      figure.lines.forEach((line, number) => {
        if (line.lane === lane) this.drawValue(stage, range, line, column, figure.y(column.band, number));
      });
      if (stage.curve) this.drawCurve(stage.curve, range, at(lanes, lane).slots, column, at(rows, 0));
      if (!stage.total || !isNumber(stage.total)) return;
      const y = at(rows, rows.length - 1) + figure.rowHeight / 2;
      this.surface.line(column.x, y, column.x + column.width, y, this.palette.line, 1);
      this.drawTerm(stage.total, column.x, y + this.size, column.width);
    });
  }

  /** The middles of the rows of a head. */
  private findRows(lane: number, band: number): number[] {
    return this.figure.lines.flatMap((line, index) => (line.lane === lane ? [this.figure.y(band, index)] : []));
  }

  /** What enters a stage goes down at its left edge, to each row. */
  private drawInputs(inputs: readonly Term[], rows: readonly number[], { x, width }: Column): void {
    if (!inputs.length) return;
    const trunk = x - this.figure.gap / 4;
    const step = TERM * this.size;
    const top = at(rows, 0) - this.figure.rowHeight / 2 - step * (inputs.length - 0.5);
    const heights = [...inputs.keys()].map((index) => top + step * index);
    inputs.forEach((term, index) => this.drawTerm(term, x + 3, at(heights, index), width - 3));
    this.drawWire(trunk, top, trunk, at(rows, rows.length - 1));
    for (const y of [...heights, ...rows]) this.drawWire(trunk, y, x, y);
  }

  private drawWire(x1: number, y1: number, x2: number, y2: number): void {
    this.surface.line(x1, y1, x2, y2, this.palette.accent, 1, 0.6);
  }

  /** A symbol with its number, or with its vector. */
  private drawTerm(term: Term, x: number, y: number, width: number): void {
    const used = this.drawFormula(x, y, at(term.formula.split(" = "), 0), this.palette.ink) + 0.4 * this.size;
    if (isNumber(term)) this.write(x + used, y, `= ${formatNumber(at(term.values, 0), 2)}`);
    else this.drawStrip(term.values, largestOf(term.values), x + used, y, width - used, this.size);
  }

  /** The value of a key, or what the other keys have together. */
  private drawValue({ values, isRead, isShare }: Stage, range: Range, { lane, slot }: Line, { x, width }: Column, y: number): void {
    const { figure, palette } = this;
    if (slot === null) {
      const { slots } = at(this.options.lanes, lane);
      const rest = values.data.reduce((sum, value, index) => (slots.includes(index) ? sum : sum + value), 0);
      if (isShare) this.write(x + width, y, `together ${formatPercent(rest)}`, { color: palette.muted, anchor: "end" });
      return;
    }
    const isFocused = slot === this.options.focus;
    if (!isRead) this.surface.line(x - figure.gap + 3, y, x, y, isFocused ? palette.accent : palette.line, isFocused ? 2 : 1);
    if (values.columns > 1) this.drawStrip(values.row(slot), range.largest, x, y, width);
    else this.drawBar(values.at(slot, 0), range, isShare, x, y, width);
  }

  /** A vector as colors. */
  private drawStrip(values: Float64Array, largest: number, x: number, y: number, width: number, height = 0.72 * this.figure.rowHeight): void {
    const levels = Uint8Array.from(values, (value) => Math.max(1, levelOf((value / largest + 1) / 2)));
    this.surface.cells(x, y - height / 2, width, height, { rows: 1, columns: values.length, levels }, this.palette.diverging);
  }

  /** The length of a number in a column; the number itself takes the rest. */
  private scale({ low, high }: Range, width: number): (value: number) => number {
    const length = width - 4.2 * this.size;
    return (value) => ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * length;
  }

  private drawBar(value: number, range: Range, isShare: boolean, x: number, y: number, width: number): void {
    const { surface, palette } = this;
    const height = 0.5 * this.figure.rowHeight;
    const scale = this.scale(range, width);
    const [start, end] = [Math.min(0, value), Math.max(0, value)].map(scale) as [number, number];
    surface.rect(x, y - height / 2, scale(range.high), height, at(palette.ramp, 0));
    const isMasked = value === -Infinity;
    if (!isMasked) surface.rect(x + start, y - height / 2, end - start, height, value < 0 ? palette.negative : palette.accent);
    const text = isShare && value > 0 ? formatPercent(value) : isShare ? "0" : formatNumber(value, Math.abs(value) < 100 ? 2 : 0);
    this.write(x + width, y, text, { color: isMasked || (isShare && value === 0) ? palette.muted : palette.ink, anchor: "end" });
  }

  /** A function over positions, drawn down the rows of the keys if they are sorted by position. */
  private drawCurve(curve: (position: number) => number, range: Range, slots: readonly number[], { x, width }: Column, top: number): void {
    if (slots.some((slot, index) => slot < (slots[index - 1] ?? 0))) return;
    const scale = this.scale(range, width);
    const points = Array.from({ length: (slots.length - 1) * CURVE + 1 }, (_, index): [number, number] => {
      const line = Math.floor(index / CURVE);
      const share = index / CURVE - line;
      const position = at(slots, line) * (1 - share) + (slots[line + 1] ?? 0) * share;
      return [x + scale(curve(position)), top + (index / CURVE) * this.figure.rowHeight];
    });
    points.slice(1).forEach((point, index) => this.surface.line(...at(points, index), ...point, this.palette.ink, 1.5, 0.8));
  }

  /** Each key enters the context with its weight. */
  private drawContext(column: Column, isReached: boolean): void {
    const { figure, surface, palette } = this;
    const { lanes, focus } = this.options;
    const { total } = at(figure.stages, figure.stages.length - 1);
    this.drawHead("Context", total?.formula ?? "", column, false);
    if (!isReached) return;
    const largest = Math.max(...lanes.map(({ row }) => (row.context ? largestOf(row.context) : 0)));
    const [x, width] = [column.x + 0.3 * column.width, 0.7 * column.width];
    const middles = lanes.map(({ row }, lane) => {
      const rows = this.findRows(lane, column.band);
      const middle = (at(rows, 0) + at(rows, rows.length - 1)) / 2;
      at(lanes, lane).slots.forEach((slot, index) => {
        const weight = at(row.weights, slot);
        const opacity = (focus === null || focus === slot ? 1 : 0.45) * (0.35 + 0.5 * weight);
        if (weight > 0) surface.curve(column.x - figure.gap, at(rows, index), x, middle, palette.accent, Math.max(0.75, 0.72 * figure.rowHeight * weight), opacity);
      });
      if (row.context) this.drawStrip(row.context, largest, x, middle, width);
      return middle;
    });
    if (lanes.length > 1) this.drawConcatenation(largest, middles, x + width);
    else this.write(x, at(middles, 0) + 0.9 * figure.rowHeight, fitText(this.output, this.size, width), { bold: true });
  }

  private get output(): string {
    return `→ “${labelToken(this.options.output)}”`;
  }

  /** The contexts of the heads, one after the other. */
  private drawConcatenation(largest: number, middles: readonly number[], x: number): void {
    const { figure, size } = this;
    const contexts = this.options.lanes.flatMap(({ row }) => (row.context ? [row.context] : []));
    const [right, y] = [figure.width - 1, figure.height - 1.8 * size];
    const left = this.drawFormula(0, y, `c = [c_1; …; c_${middles.length}]`, this.palette.ink) + size;
    const end = right - 1.1 * measureText(this.output, size) - 2;
    const width = (end - size - left) / contexts.length;
    const turn = y - 0.7 * figure.rowHeight;
    for (const middle of middles) this.drawWire(x, middle, right, middle);
    this.drawWire(right, at(middles, 0), right, turn);
    this.drawWire(right, turn, left, turn);
    contexts.forEach((context, head) => this.drawStrip(context, largest, left + head * width, y, width - 4));
    this.write(end, y, this.output, { bold: true });
  }

  /** Draw a formula with its subscripts in a line, and return its width. */
  private drawFormula(x: number, y: number, formula: string, color: string): number {
    let used = 0;
    for (const part of formula.split(/(_\{[^}]*\}|_.)/u)) {
      const isScript = part.startsWith("_");
      const text = part.replace(/^_|[{}]/gu, "");
      const size = isScript ? 0.75 * this.size : this.size;
      this.write(x + used, isScript ? y + 0.3 * this.size : y, text, { size, color });
      used += measureText(text, size);
    }
    return used;
  }
}

/** The points of a curve for each row. */
const CURVE = 8;

interface Range {
  low: number;
  high: number;
  /** The largest absolute value. */
  largest: number;
}

/** The range of the finite values of a stage in all heads; from 0 to 1 for shares. */
function findRange(stages: readonly Stage[]): Range {
  let [low, high] = [0, stages.some((each) => each.isShare) ? 1 : 0];
  for (const { values } of stages) {
    for (const value of values.data) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return { low, high: high > low ? high : low + 1, largest: Math.max(-low, high) || 1 };
}

const largestOf = (values: Float64Array): number => values.reduce((best, value) => Math.max(best, Math.abs(value)), 0) || 1;

/** Return a formula that fits: all of it, or its left side, or nothing. */
function shorten(formula: string, size: number, width: number): string {
  const sides = formula.split(/ [=←] /);
  const isTooLong = measureText(formula.replace(/[{}_]/g, ""), size) > width;
  return isTooLong ? (sides.length > 1 ? at(sides, 0) : "") : formula;
}
