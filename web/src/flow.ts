/** The computation of attention as one diagram: a row for each key, a column for each stage, and the context at the end. */
import { at, Matrix } from "./arrays.js";
import type { Row, Stage, Term } from "./equation.js";
import type { Cell, Figure } from "./figures.js";
import { levelOf, type Palette } from "./palette.js";
import { fitText, measureText, type Surface } from "./surface.js";
import { formatNumber, formatPercent, labelToken } from "./trace.js";

export type Order = "weight" | "position";

/** How many keys are drawn: those with the largest weights. The others are one row. */
const MOST_KEYS: Record<Order, number> = { weight: 12, position: 24 };
const FEW_KEYS = 3;

/** A head: its computation, and the keys that are shown. The others are one row. */
export interface Lane {
  name: string;
  row: Row;
  slots: readonly number[];
}

/** Return the keys that are drawn. In a figure of several heads, each has few. */
export function chooseSlots(weights: Float64Array, order: Order, count: "all" | "most" | "few"): number[] {
  const sorted = [...weights.keys()].sort((left, right) => at(weights, right) - at(weights, left) || left - right);
  const limit = count === "few" ? FEW_KEYS : MOST_KEYS[order];
  // One row for the others is worth it if there are several.
  const shown = count === "all" || sorted.length <= limit + 2 ? sorted : sorted.slice(0, limit);
  return order === "weight" ? shown : shown.sort((left, right) => left - right);
}

/** Return the stages that are drawn for several heads: those with one number for each key, and the last. */
export function summarize(row: Row): Row {
  const stages = row.stages.filter((each, index) => each.values.columns === 1 || index === row.stages.length - 1);
  return { ...row, stages: stages.map((each) => ({ ...each, total: null })) };
}

const isFinitePair = (left: number, right: number): boolean => Number.isFinite(left) && Number.isFinite(right);

/** Return numbers between those of two computations: a share of 1 is the second. Stages that differ are those of the second. */
export function mixRows(before: Row, after: Row, share: number): Row {
  const mix = (from: Float64Array, to: Float64Array): Float64Array =>
    to.map((value, index) => (isFinitePair(from[index] ?? NaN, value) ? value * share + at(from, index) * (1 - share) : value));
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
  /** The token that is predicted from the context. */
  output: string;
}

const GAP = 24;

/** A row of the drawing: a key of a head, or the keys that are not shown (null). */
interface Line {
  lane: number;
  slot: number | null;
}

export class FlowFigure implements Figure {
  readonly width: number;
  readonly height: number;
  readonly lines: readonly Line[];
  private readonly labels: readonly string[];
  private readonly left: number;
  private readonly columnWidth: number;
  /** The stages and the context are drawn in several bands if the figure is narrow. */
  private readonly perBand: number;
  private readonly rowHeight: number;
  private readonly headHeight: number;
  /** For each band: the space above the rows of a head for what enters its stages, the space below for sums, the top. */
  private readonly bands: readonly { inputs: number; totals: number; top: number }[];
  readonly stages: readonly Stage[];

  constructor(readonly options: FlowOptions) {
    const { lanes, fontSize } = options;
    this.width = options.width;
    this.stages = at(lanes, 0).row.stages;
    this.lines = lanes.flatMap(({ slots, row }, lane) => [...slots.map((slot) => ({ lane, slot })), ...(slots.length < row.weights.length ? [{ lane, slot: null }] : [])]);
    this.labels = this.lines.map((line) => this.labelLine(line));
    const longest = Math.max(...this.labels.map((label) => measureText(label, fontSize)));
    this.left = Math.min(longest + 3.4 * fontSize, Math.max(8 * fontSize, 0.16 * options.width));
    const columns = this.stages.length + 1;
    const fitting = Math.max(2, Math.floor((this.width - this.left) / (6.8 * fontSize + GAP)));
    const count = Math.ceil(columns / fitting);
    this.perBand = Math.ceil(columns / count);
    this.columnWidth = (this.width - this.left) / this.perBand - GAP;
    // Up to 13 rows are comfortable; more are closer.
    this.rowHeight = fontSize * Math.max(1.5, Math.min(2, 26 / (this.lines.length / lanes.length)));
    this.headHeight = 3.4 * fontSize;
    let top = 0;
    this.bands = Array.from({ length: count }, (_, band) => {
      const stages = this.stages.slice(band * this.perBand, (band + 1) * this.perBand);
      const inputs = 1.7 * fontSize * Math.max(lanes.length > 1 ? 1 : 0.3, ...stages.map((each) => each.inputs.length));
      const totals = fontSize * (stages.some((each) => each.total?.values.length === 1) ? 1.9 : 0.5);
      const start = top;
      top += this.headHeight + this.lines.length * this.rowHeight + lanes.length * (inputs + totals) + fontSize;
      return { inputs, totals, top: start };
    });
    this.height = top + (lanes.length > 1 ? 3 * fontSize : -fontSize);
  }

  labelKey(slot: number): string {
    return labelToken(this.options.keys[slot] ?? String(slot + 1));
  }

  private labelLine({ lane, slot }: Line): string {
    if (slot !== null) return this.labelKey(slot);
    const { row, slots } = at(this.options.lanes, lane);
    return `${row.weights.length - slots.length} more`;
  }

  private bandOf(column: number): number {
    return Math.floor(column / this.perBand);
  }

  /** The left edge of a column; the context is the one after the stages. */
  private x(column: number): number {
    return this.left + (column % this.perBand) * (this.columnWidth + GAP);
  }

  /** The middle of a line in a band. */
  private y(band: number, line: number): number {
    const { lane } = at(this.lines, line);
    const { inputs, totals, top } = at(this.bands, band);
    return top + this.headHeight + (line + 0.5) * this.rowHeight + (lane + 1) * inputs + lane * totals;
  }

  /** The lines of a head. */
  private linesOf(lane: number): number[] {
    return [...this.lines.keys()].filter((line) => at(this.lines, line).lane === lane);
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    const { stage, isPartial } = this.options;
    for (const band of this.bands.keys()) this.drawLabels(surface, palette, band);
    this.stages.forEach((each, column) => {
      this.drawHead(surface, palette, each, column);
      if (!isPartial || stage === null || column <= stage) this.drawStage(surface, palette, column);
    });
    this.drawContext(surface, palette, Boolean(isPartial) && stage !== null && stage < this.stages.length - 1);
  }

  private drawLabels(surface: Surface, palette: Palette, band: number): void {
    const { fontSize, focus, lanes } = this.options;
    this.lines.forEach(({ slot, lane }, line) => {
      const y = this.y(band, line);
      const isFocused = slot !== null && slot === focus;
      if (isFocused) surface.rect(0, y - this.rowHeight / 2, this.width, this.rowHeight, palette.tint);
      const style = { size: fontSize, color: isFocused ? palette.accent : slot === null ? palette.muted : palette.ink, anchor: "end", bold: isFocused } as const;
      surface.text(this.left - 12, y, fitText(at(this.labels, line), fontSize, this.left - 2.6 * fontSize), style);
      if (slot !== null) surface.text(2, y, String(slot + 1), { size: 0.8 * fontSize, color: palette.muted });
      if (lanes.length > 1 && this.lines[line - 1]?.lane !== lane) {
        surface.text(2, y - this.rowHeight / 2 - 0.9 * fontSize, at(lanes, lane).name, { size: fontSize, color: palette.ink, bold: true });
      }
    });
  }

  private drawHead(surface: Surface, palette: Palette, stage: Stage, column: number): void {
    const { fontSize, stage: active } = this.options;
    const x = this.x(column);
    const { top } = at(this.bands, this.bandOf(column));
    const isActive = column === active;
    if (isActive) surface.rect(x, top + 1, this.columnWidth, 3, palette.accent);
    surface.text(x, top + fontSize, fitText(stage.name, fontSize, this.columnWidth), { size: fontSize, color: isActive ? palette.accent : palette.ink, bold: true });
    drawFormula(surface, x, top + 2.5 * fontSize, shorten(stage.formula, fontSize, this.columnWidth), fontSize, palette.muted);
  }

  /** What enters a stage goes down at its left edge, to each row. */
  private drawInputs(surface: Surface, palette: Palette, inputs: readonly Term[], rows: readonly number[], x: number): void {
    if (!inputs.length) return;
    const { fontSize } = this.options;
    const trunk = x - GAP / 4;
    const first = at(rows, 0) - this.rowHeight / 2 - 1.7 * fontSize * (inputs.length - 0.5);
    inputs.forEach((term, index) => {
      const y = first + 1.7 * fontSize * index;
      surface.line(trunk, y, x, y, palette.accent, 1, 0.6);
      this.drawTerm(surface, palette, term, x + 3, y, this.columnWidth - 3);
    });
    surface.line(trunk, first, trunk, at(rows, rows.length - 1), palette.accent, 1, 0.6);
    for (const y of rows) surface.line(trunk, y, x, y, palette.accent, 1, 0.6);
  }

  /** A symbol with its number, or with its vector. */
  private drawTerm(surface: Surface, palette: Palette, term: Term, x: number, y: number, width: number): void {
    const { fontSize } = this.options;
    const symbol = at(term.formula.split(" = "), 0);
    const used = drawFormula(surface, x, y, symbol, fontSize, palette.ink) + 6;
    if (term.values.length === 1) surface.text(x + used, y, `= ${formatNumber(at(term.values, 0), 2)}`, { size: fontSize, color: palette.ink });
    else drawStrip(surface, palette, term.values, largestOf(term.values), x + used, y - fontSize / 2, width - used, fontSize);
  }

  private drawStage(surface: Surface, palette: Palette, column: number): void {
    const { lanes } = this.options;
    const [x, band] = [this.x(column), this.bandOf(column)];
    const stages = lanes.map((lane) => at(lane.row.stages, column));
    const range = findRange(stages);
    stages.forEach((stage, lane) => {
      const lines = this.linesOf(lane);
      const rows = lines.map((line) => this.y(band, line));
      this.drawInputs(surface, palette, stage.inputs, rows, x);
      for (const line of lines) this.drawValue(surface, palette, stage, range, line, column);
      if (stage.curve) this.drawCurve(surface, palette, stage.curve, range, at(lanes, lane).slots, x, at(rows, 0));
      if (stage.total?.values.length !== 1) return;
      const y = at(rows, rows.length - 1) + this.rowHeight / 2;
      surface.line(x, y, x + this.columnWidth, y, palette.line, 1);
      this.drawTerm(surface, palette, stage.total, x, y + this.options.fontSize, this.columnWidth);
    });
  }

  /** The value of a key, or what the other keys have together. */
  private drawValue(surface: Surface, palette: Palette, { values, isRead, isShare }: Stage, range: Range, line: number, column: number): void {
    const { lanes, focus, fontSize } = this.options;
    const { lane, slot } = at(this.lines, line);
    const [x, y] = [this.x(column), this.y(this.bandOf(column), line)];
    if (slot === null) {
      const { slots } = at(lanes, lane);
      const rest = values.data.reduce((sum, value, index) => (slots.includes(index) ? sum : sum + value), 0);
      if (isShare) surface.text(x + this.columnWidth, y, `together ${formatPercent(rest)}`, { size: fontSize, color: palette.muted, anchor: "end" });
      return;
    }
    const start = column % this.perBand ? x - GAP + 3 : this.left - 10;
    if (!isRead) surface.line(start, y, x, y, slot === focus ? palette.accent : palette.line, slot === focus ? 2 : 1);
    if (values.columns > 1) drawStrip(surface, palette, values.row(slot), range.largest, x, y - 0.36 * this.rowHeight, this.columnWidth, 0.72 * this.rowHeight);
    else this.drawBar(surface, palette, values.at(slot, 0), range, isShare, x, y);
  }

  /** The share of the column that bars take. Numbers take the rest. */
  private get barWidth(): number {
    return this.columnWidth - 4.2 * this.options.fontSize;
  }

  private drawBar(surface: Surface, palette: Palette, value: number, range: Range, isShare: boolean, x: number, y: number): void {
    const { fontSize } = this.options;
    const height = 0.5 * this.rowHeight;
    const scale = this.barWidth / (range.high - range.low);
    const zero = x - range.low * scale;
    surface.rect(x, y - height / 2, this.barWidth, height, at(palette.ramp, 0));
    if (Number.isFinite(value)) surface.rect(Math.min(zero, zero + value * scale), y - height / 2, Math.abs(value) * scale, height, value < 0 ? palette.negative : palette.accent);
    const text = isShare ? formatPercent(value) : formatNumber(value, Math.abs(value) < 100 ? 2 : 0);
    surface.text(x + this.columnWidth, y, text, { size: fontSize, color: Number.isFinite(value) ? palette.ink : palette.muted, anchor: "end" });
  }

  /** A function over positions, drawn down the rows of the keys. */
  private drawCurve(surface: Surface, palette: Palette, curve: (position: number) => number, range: Range, slots: readonly number[], x: number, y: number): void {
    if (slots.some((slot, index) => slot < (slots[index - 1] ?? 0))) return;
    const scale = this.barWidth / (range.high - range.low);
    const place = (value: number): number => x + (Math.max(range.low, Math.min(range.high, value)) - range.low) * scale;
    const steps = 8;
    for (let part = 0; part < (slots.length - 1) * steps; part++) {
      const [start, end] = [part, part + 1].map((index): [number, number] => {
        const line = Math.min(Math.floor(index / steps), slots.length - 2);
        const share = index / steps - line;
        return [place(curve(at(slots, line) * (1 - share) + at(slots, line + 1) * share)), y + (index / steps) * this.rowHeight];
      }) as [[number, number], [number, number]];
      surface.line(...start, ...end, palette.ink, 1.5, 0.8);
    }
  }

  /** Each key enters the context with its weight. */
  private drawContext(surface: Surface, palette: Palette, isHidden: boolean): void {
    const { lanes, fontSize, focus, output } = this.options;
    const column = this.stages.length;
    const [x, band] = [this.x(column), this.bandOf(column)];
    const { top } = at(this.bands, band);
    surface.text(x, top + fontSize, "Context", { size: fontSize, color: palette.ink, bold: true });
    drawFormula(surface, x, top + 2.5 * fontSize, lanes.length > 1 ? "c_h = ∑_j a_j v_j" : "c = ∑_j a_j v_j", fontSize, palette.muted);
    if (isHidden) return;
    const start = column % this.perBand ? x - GAP : this.left - 10;
    const largest = Math.max(...lanes.map(({ row }) => (row.context ? largestOf(row.context) : 0)));
    const strip = x + this.columnWidth * 0.3;
    const width = this.columnWidth * 0.7;
    lanes.forEach(({ row }, lane) => {
      const lines = this.linesOf(lane);
      const middle = (this.y(band, at(lines, 0)) + this.y(band, at(lines, lines.length - 1))) / 2;
      for (const line of lines) {
        const { slot } = at(this.lines, line);
        if (slot === null) continue;
        const weight = at(row.weights, slot);
        const opacity = focus === null || focus === slot ? 0.35 + 0.5 * weight : 0.15 + 0.25 * weight;
        surface.curve(start, this.y(band, line), strip, middle, palette.accent, Math.max(0.75, 0.72 * this.rowHeight * weight), opacity);
      }
      if (row.context) drawStrip(surface, palette, row.context, largest, strip, middle - 0.36 * this.rowHeight, width, 0.72 * this.rowHeight);
      if (lanes.length === 1) surface.text(strip, middle + this.rowHeight * 0.85, fitText(`→ “${labelToken(output)}”`, fontSize, width), { size: fontSize, color: palette.ink, bold: true });
      else surface.line(strip + width, middle, this.width - 1, middle, palette.accent, 1, 0.6);
    });
    if (lanes.length > 1) this.drawConcatenation(surface, palette, largest, this.y(band, 0));
  }

  /** The contexts of the heads, one after the other. */
  private drawConcatenation(surface: Surface, palette: Palette, largest: number, top: number): void {
    const { lanes, fontSize, output } = this.options;
    const contexts = lanes.flatMap(({ row }) => (row.context ? [row.context] : []));
    const y = this.height - 1.8 * fontSize;
    const used = drawFormula(surface, 0, y, `c = [c_1; …; c_${lanes.length}]`, fontSize, palette.ink) + 12;
    const text = `→ “${labelToken(output)}”`;
    const width = (this.width - used - measureText(text, fontSize) - 40) / contexts.length;
    surface.line(this.width - 1, top, this.width - 1, y - this.rowHeight * 0.7, palette.accent, 1, 0.6);
    surface.line(used, y - this.rowHeight * 0.7, this.width - 1, y - this.rowHeight * 0.7, palette.accent, 1, 0.6);
    contexts.forEach((context, head) => drawStrip(surface, palette, context, largest, used + head * width, y - 0.36 * this.rowHeight, width - 4, 0.72 * this.rowHeight));
    surface.text(used + contexts.length * width + 4, y, text, { size: fontSize, color: palette.ink, bold: true });
  }

  /** The line and the stage at a point. */
  find(x: number, y: number): Cell | null {
    const band = this.bands.findLastIndex(({ top }) => y >= top);
    if (band < 0) return null;
    const inBand = Math.max(0, Math.min(this.perBand - 1, Math.floor((x - this.left + GAP / 2) / (this.columnWidth + GAP))));
    const column = Math.min(this.stages.length - 1, band * this.perBand + inBand);
    const row = this.lines.findIndex((_, line) => Math.abs(y - this.y(band, line)) <= this.rowHeight / 2);
    return row < 0 ? null : { row, column };
  }
}

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
      if (value < low && value !== -Infinity) low = value;
      if (value > high) high = value;
    }
  }
  const largest = Math.max(-low, high) || 1;
  return { low, high: high > low ? high : low + 1, largest };
}

const largestOf = (values: Float64Array): number => values.reduce((best, value) => Math.max(best, Math.abs(value)), 0) || 1;

/** A vector as colors. */
function drawStrip(surface: Surface, palette: Palette, values: Float64Array, largest: number, x: number, y: number, width: number, height: number): void {
  const levels = Uint8Array.from(values, (value) => Math.max(1, levelOf((value / largest + 1) / 2)));
  surface.cells(x, y, width, height, { rows: 1, columns: values.length, levels }, palette.diverging);
}

/** What is left of the equals sign, if the formula is too long. */
function shorten(formula: string, size: number, width: number): string {
  const flat = formula.replace(/[{}]/g, "");
  return measureText(flat, size) <= width ? formula : at(formula.split(/ [=←] /), 0);
}

/** Draw a formula with its subscripts in a line, and return its width. */
function drawFormula(surface: Surface, x: number, y: number, formula: string, size: number, color: string): number {
  let used = 0;
  for (const part of formula.split(/(_\{[^}]*\}|_.)/u)) {
    const isScript = part.startsWith("_");
    const text = part.replace(/^_|[{}]/gu, "");
    const height = isScript ? 0.75 * size : size;
    surface.text(x + used, y + (isScript ? 0.3 * size : 0), text, { size: height, color });
    used += measureText(text, height);
  }
  return used;
}
