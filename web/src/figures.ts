/** Figures: what the views draw, and what they export. */
import { at, type Matrix } from "./arrays.js";
import { createScale, ScaleFigure, type Colors, type Scale } from "./color-scale.js";
import type { Marks } from "./edits.js";
import type { HeadSummary } from "./heads.js";
import { levelOf, type Palette } from "./palette.js";
import { layRibbons, WIDEST, type Box } from "./ribbons.js";
import { CanvasSurface, fitText, measureText, PlacedSurface, SvgSurface, type Grid, type Surface, type TextStyle } from "./surface.js";
import { formatNumber, formatPercent, labelToken, type Axes } from "./trace.js";

export interface Figure {
  width: number;
  height: number;
  /** Draw the figure on a surface with the background of the palette. */
  draw(surface: Surface, palette: Palette): void;
}

/** A cell of a matrix. */
export interface Cell {
  row: number;
  column: number;
}

/** The space that a figure may take, and what is marked in it. A figure is larger if cells would become invisible. */
export interface Frame {
  width: number;
  height: number;
  /** The size of the text in pixels; null: it grows with the cells. */
  fontSize: number | null;
  focus: Cell | null;
  selected: readonly number[];
}

/** Return the frame of a figure on paper, as one of several in a row. It does not depend on the window, and has no marks. */
export const framePaper = (fontSize: number, count = 1): Frame => ({
  width: Math.max(640 / count, 320, 24 * fontSize),
  height: 640,
  fontSize,
  focus: null,
  selected: [],
});

const GAP = 24;
/** The distance of the lines of a hatched area. */
const HATCH = 7;
/** The width of several figures in a row, relative to the size of the text. */
export const WIDEST_ROW = 85;
/** The longest label, relative to the size of its text. */
const LONGEST_LABEL = 9;
const [SMALLEST_TEXT, LARGEST_TEXT] = [13, 20];

/** The size of names of axes and of scales, relative to that of labels. */
const SMALL = 0.85;

/** Return the size of labels that fits the size of cells. */
const growText = (cell: number): number => Math.max(SMALLEST_TEXT, Math.min(LARGEST_TEXT, 0.45 * cell));

/** Return the level of each weight in the colors of its scale. */
function quantize(weights: Matrix, colors: Colors): Grid {
  const levels = new Uint8Array(weights.rows * weights.columns);
  for (let row = 0; row < weights.rows; row++) {
    const values = weights.row(row);
    const largest = colors === "row" ? values.reduce((best, value) => Math.max(best, value), 0) || 1 : 1;
    values.forEach((value, column) => {
      const share = value / largest;
      levels[row * weights.columns + column] = levelOf(colors === "signed" ? (share + 1) / 2 : share);
    });
  }
  return { rows: weights.rows, columns: weights.columns, levels };
}

/** What is above a map: the names of its axes, and its scale at the end of the line. */
class MapHead {
  readonly height: number;
  readonly width: number;
  private readonly scale: ScaleFigure;
  private readonly fontSize: number;

  constructor(
    readonly name: string,
    scale: Scale,
    fontSize: number,
  ) {
    this.fontSize = SMALL * fontSize;
    this.scale = new ScaleFigure(scale, this.fontSize);
    this.height = this.scale.height + 0.6 * fontSize;
    this.width = measureText(name, this.fontSize) + fontSize + this.scale.width;
  }

  draw(surface: Surface, palette: Palette, left: number, right: number): void {
    surface.text(left, 0.75 * this.fontSize, this.name, { size: this.fontSize, color: palette.muted });
    this.scale.draw(new PlacedSurface(surface, right - this.scale.width, 2), palette);
  }
}

/** How the label of a row or a column is marked: its token was hidden in the source, or forced in the output. */
function markLabel(marks: Marks | undefined, side: "rows" | "columns", index: number, { edit: color }: Palette): TextStyle["mark"] {
  if (marks?.struck[side].has(index)) return { line: "line-through", color };
  return marks?.forced[side].has(index) ? { line: "overline", color } : undefined;
}

/** Draw diagonal lines over an area: it is switched off. */
function hatch(surface: Surface, x: number, y: number, width: number, height: number, color: string): void {
  for (let offset = HATCH / 2; offset < width + height; offset += HATCH) {
    const [x1, y1] = offset < height ? [x, y + offset] : [x + offset - height, y + height];
    const [x2, y2] = offset < width ? [x + offset, y] : [x + width, y + offset - width];
    surface.line(x1, y1, x2, y2, color, 1);
  }
}

export interface MatrixOptions extends Frame {
  weights: Matrix;
  axes: Axes;
  marks?: Marks | undefined;
  colors: Colors;
}

/** The matrix of weights: queries down, keys across. */
export class MatrixFigure implements Figure {
  readonly width: number;
  readonly height: number;
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly left: number;
  readonly top: number;
  private readonly rows: string[];
  private readonly columns: string[];
  private readonly isRotated: boolean;
  private readonly head: MapHead;
  private readonly fontSize: number;

  constructor(readonly options: MatrixOptions) {
    const { weights, axes } = options;
    this.rows = axes.rows.map(labelToken);
    this.columns = axes.columns.map(labelToken);
    // The space for the cells depends on the size of the labels, which grows with the cells.
    const { cellWidth, cellHeight } = this.layOut(SMALLEST_TEXT);
    this.fontSize = options.fontSize ?? growText(Math.min(cellWidth, cellHeight));
    const layout = this.layOut(this.fontSize);
    this.head = layout.head;
    this.left = layout.left;
    this.top = layout.top;
    this.isRotated = layout.isRotated;
    this.cellWidth = layout.cellWidth;
    this.cellHeight = layout.cellHeight;
    this.width = this.left + Math.max(weights.columns * this.cellWidth, this.head.width) + 12;
    this.height = this.top + weights.rows * this.cellHeight + 8;
  }

  private layOut(fontSize: number) {
    const { weights, axes, colors, width, height } = this.options;
    const head = new MapHead(`${axes.columnName} →`, createScale(colors), fontSize);
    const longest = (labels: string[]): number =>
      labels.reduce((most, label) => Math.max(most, Math.min(measureText(label, fontSize), LONGEST_LABEL * fontSize)), 0);
    const left = Math.max(longest(this.rows), measureText(`${axes.rowName} ↓`, SMALL * fontSize)) + 14;
    const cellWidth = Math.max(2, Math.min(56, (width - left - 12) / Math.max(weights.columns, 1)));
    const columnLength = longest(this.columns);
    const isRotated = columnLength > cellWidth - 2;
    const top = head.height + (isRotated ? columnLength : fontSize) + 12;
    // Rows stay legible while columns are: a long output scrolls.
    const fittingHeight = (height - top - 8) / Math.max(weights.rows, 1);
    const cellHeight = Math.max(Math.min(1.5 * fontSize, cellWidth), Math.min(40, fittingHeight), 2);
    return { head, left, top, cellWidth, cellHeight, isRotated };
  }

  draw(surface: Surface, palette: Palette): void {
    this.head.draw(surface, palette, this.left, this.width - 12);
    this.drawCells(surface, palette);
    this.drawLabels(surface, palette);
    if (this.options.marks) this.drawMarks(surface, palette, this.options.marks);
    this.drawSelection(surface, palette);
  }

  private drawMarks(surface: Surface, palette: Palette, { rows, cells, isOff }: Marks): void {
    const { cellWidth, cellHeight, left, top, options: { weights } } = this;
    const width = weights.columns * cellWidth;
    if (isOff) hatch(surface, left, top, width, weights.rows * cellHeight, palette.edit);
    for (const { row, column } of cells) hatch(surface, left + column * cellWidth, top + row * cellHeight, cellWidth - 1, cellHeight - 1, palette.edit);
    for (const row of rows) surface.outline(left - 1, top + row * cellHeight - 1, width + 1, cellHeight + 1, palette.edit, 2);
  }

  private drawCells(surface: Surface, palette: Palette): void {
    const { weights, colors } = this.options;
    const ramp = createScale(colors).ramp(palette);
    const grid = quantize(weights, colors);
    const cell = Math.min(this.cellWidth, this.cellHeight);
    if (cell <= 8) {
      const [width, height] = [weights.columns * this.cellWidth, weights.rows * this.cellHeight];
      surface.rect(this.left, this.top, width, height, at(ramp, 0));
      surface.cells(this.left, this.top, width, height, grid, ramp);
      return;
    }
    grid.levels.forEach((level, index) => {
      const x = this.left + (index % weights.columns) * this.cellWidth;
      const y = this.top + Math.floor(index / weights.columns) * this.cellHeight;
      surface.rect(x, y, this.cellWidth - 1, this.cellHeight - 1, at(ramp, level));
      // Both signs have the same brightness.
      if (colors !== "signed" || cell < SMALLEST_TEXT || level > 120) return;
      const middle = y + this.cellHeight / 2;
      const end = x + this.cellWidth / 2;
      surface.line(end - 4, middle, end + 3, middle, level < 50 ? at(ramp, 128) : palette.ink, 1.3);
    });
  }

  private drawLabels(surface: Surface, palette: Palette): void {
    const { fontSize, options: { axes, focus, marks } } = this;
    const every = (size: number): number => Math.max(1, Math.ceil((0.95 * fontSize) / size));
    const columnStep = every(this.cellWidth);
    const rowStep = every(this.cellHeight);
    const longest = LONGEST_LABEL * fontSize;
    surface.text(this.left - 8, this.top - 10, `${axes.rowName} ↓`, { size: SMALL * fontSize, color: palette.muted, anchor: "end" });
    this.columns.forEach((label, column) => {
      const isFocused = focus?.column === column;
      if (column % columnStep && !isFocused) return;
      const x = this.left + (column + 0.5) * this.cellWidth;
      const style = { size: fontSize, color: isFocused ? palette.accent : palette.ink, bold: isFocused, mark: markLabel(marks, "columns", column, palette) };
      const text = fitText(label, fontSize, longest);
      if (this.isRotated) surface.text(x, this.top - 8, text, { ...style, rotate: -90 });
      else surface.text(x, this.top - 0.9 * fontSize, text, { ...style, anchor: "middle" });
    });
    this.rows.forEach((label, row) => {
      const isFocused = focus?.row === row;
      if (row % rowStep && !isFocused) return;
      const y = this.top + (row + 0.5) * this.cellHeight;
      const style = { size: fontSize, color: isFocused ? palette.accent : palette.ink, bold: isFocused, mark: markLabel(marks, "rows", row, palette) };
      surface.text(this.left - 8, y, fitText(label, fontSize, longest), { ...style, anchor: "end" });
    });
  }

  private drawSelection(surface: Surface, palette: Palette): void {
    const { focus, selected, weights } = this.options;
    for (const row of selected) {
      const y = this.top + row * this.cellHeight;
      surface.rect(this.left - 4, y, 3, this.cellHeight - 1, palette.accent);
    }
    if (!focus || focus.row >= weights.rows || focus.column >= weights.columns) return;
    const x = this.left + focus.column * this.cellWidth;
    const y = this.top + focus.row * this.cellHeight;
    const right = this.left + weights.columns * this.cellWidth;
    surface.outline(this.left - 0.5, y - 0.5, right - this.left, this.cellHeight, palette.line, 1);
    surface.outline(x - 1, y - 1, this.cellWidth + 1, this.cellHeight + 1, palette.accent, 2);
  }

  /** Return the cell at a point, or null outside. */
  find(x: number, y: number): Cell | null {
    const column = Math.floor((x - this.left) / this.cellWidth);
    const row = Math.floor((y - this.top) / this.cellHeight);
    const { weights } = this.options;
    return row >= 0 && row < weights.rows && column >= 0 && column < weights.columns ? { row, column } : null;
  }
}

export type LinesOptions = Omit<MatrixOptions, "colors">;

/** Return the width and the opacity of the line of a weight. */
const styleLine = (weight: number, fontSize: number): [stroke: number, opacity: number] => [(0.05 + 0.25 * weight) * fontSize, Math.min(1, 0.9 * weight + 0.08)];

/** The legend of lines: some of them, with their weights. */
class LineScale implements Figure {
  readonly width: number;
  readonly height: number;

  constructor(
    readonly fontSize: number,
    readonly style: (weight: number) => [stroke: number, opacity: number],
  ) {
    this.width = 12.6 * SMALL * fontSize;
    this.height = 1.2 * fontSize;
  }

  draw(surface: Surface, palette: Palette): void {
    const size = SMALL * this.fontSize;
    [0.1, 0.5, 1].forEach((weight, index) => {
      const [x, y] = [4.4 * size * index, this.height / 2];
      surface.line(x, y, x + 1.6 * size, y, palette.accent, ...this.style(weight));
      surface.text(x + 2 * size, y, String(weight), { size, color: palette.muted });
    });
  }
}

/** Curves from keys (left) to queries (right). The opacity of a curve is its weight. */
export class LinesFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly fontSize: number;
  private readonly rowHeight: number;
  private readonly side: number;
  private readonly top: number;

  constructor(readonly options: LinesOptions) {
    const { axes } = options;
    this.fontSize = options.fontSize ?? 15;
    this.rowHeight = 1.75 * this.fontSize;
    this.top = 4 * this.fontSize;
    const longest = [...axes.rows, ...axes.columns].map((token) => measureText(labelToken(token), this.fontSize));
    this.side = Math.min(Math.max(4 * this.fontSize, ...longest) + 16, 15 * this.fontSize);
    this.width = Math.min(options.width, 2 * this.side + 460);
    this.height = Math.max(axes.rows.length, axes.columns.length) * this.rowHeight + this.top + 8;
  }

  private y(index: number, count: number): number {
    const tallest = Math.max(this.options.axes.rows.length, this.options.axes.columns.length);
    return this.top + (index + 0.5 + (tallest - count) / 2) * this.rowHeight;
  }

  draw(surface: Surface, palette: Palette): void {
    const { fontSize, side, options: { axes, weights, focus, marks } } = this;
    const right = this.width - side;
    const small = { size: SMALL * fontSize, color: palette.muted };
    surface.text(side - 10, this.top - fontSize, axes.columnName, { ...small, anchor: "end" });
    surface.text(right + 10, this.top - fontSize, axes.rowName, small);
    const style = (weight: number): [number, number] => styleLine(weight, fontSize);
    const scale = new LineScale(fontSize, style);
    scale.draw(new PlacedSurface(surface, (this.width - scale.width) / 2, 0), palette);
    for (let row = 0; row < weights.rows; row++) {
      const isDimmed = focus !== null && focus.row !== row;
      weights.row(row).forEach((weight, column) => {
        if (weight < 0.01) return;
        const [stroke, opacity] = style(weight);
        const from = this.y(column, weights.columns);
        surface.curve(side, from, right, this.y(row, weights.rows), palette.accent, stroke, isDimmed ? weight * 0.18 : opacity);
      });
    }
    axes.columns.forEach((token, column) => {
      const weight = focus ? weights.at(focus.row, column) : 0;
      const style = { size: fontSize, color: weight > 0.15 ? palette.accent : palette.ink, bold: weight > 0.15, mark: markLabel(marks, "columns", column, palette) };
      surface.text(side - 10, this.y(column, weights.columns), fitText(labelToken(token), fontSize, side - 14), { ...style, anchor: "end" });
    });
    axes.rows.forEach((token, row) => {
      const isFocused = focus?.row === row;
      const style = { size: fontSize, color: isFocused ? palette.accent : palette.ink, bold: isFocused, mark: markLabel(marks, "rows", row, palette) };
      surface.text(right + 10, this.y(row, weights.rows), fitText(labelToken(token), fontSize, side - 14), style);
    });
  }

  find(x: number, y: number): Cell | null {
    const { weights } = this.options;
    const index = (count: number): number => Math.floor((y - this.top) / this.rowHeight - (Math.max(weights.rows, weights.columns) - count) / 2);
    const row = index(weights.rows);
    if (row < 0 || row >= weights.rows || x < this.width / 2) return null;
    return { row, column: this.options.focus?.column ?? 0 };
  }
}

export interface GridOptions extends Frame {
  /** Layers × heads. */
  maps: Matrix[][];
  axes: Axes;
  colors: "fixed" | "row";
  /** Whether a head is switched off. */
  isOff(layer: number, head: number): boolean;
  /** What changes without a head, if it is known. */
  effects: readonly HeadSummary[];
}

/** A thumbnail for each layer and head: in its cells, a row is a layer and a column is a head. */
export class GridFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly tileWidth: number;
  private readonly tileHeight: number;
  private readonly left: number;
  private readonly top: number;
  private readonly gap = 14;
  private readonly captionHeight: number;
  private readonly fontSize: number;
  private readonly head: MapHead;

  constructor(readonly options: GridOptions) {
    const { maps, axes, colors, width } = options;
    const heads = Math.max(...maps.map((layer) => layer.length));
    const first = at(at(maps, 0), 0);
    this.fontSize = options.fontSize ?? growText(width / heads / 5);
    this.head = new MapHead(`${axes.rowName} ↓ ${axes.columnName} →`, createScale(colors), this.fontSize);
    this.left = measureText(`Layer ${maps.length}`, this.fontSize) + 14;
    this.top = this.head.height + 2 * this.fontSize;
    this.tileWidth = Math.max(48, Math.min(230, (width - this.left) / heads - this.gap));
    this.tileHeight = Math.max(36, Math.min(this.tileWidth * (first.rows / first.columns), this.tileWidth * 1.4));
    this.captionHeight = options.effects.length ? 2.4 * this.fontSize : 0;
    this.width = this.left + Math.max(heads * (this.tileWidth + this.gap), this.head.width + this.gap);
    this.height = this.top + maps.length * (this.tileHeight + this.captionHeight + this.gap);
  }

  draw(surface: Surface, palette: Palette): void {
    this.head.draw(surface, palette, this.left, this.width - this.gap);
    this.options.maps.forEach((heads, layer) => {
      const { y } = this.place(layer, 0);
      const style = { size: this.fontSize, color: palette.muted, anchor: "end" } as const;
      surface.text(this.left - 12, y + this.tileHeight / 2, `Layer ${layer + 1}`, style);
      heads.forEach((weights, head) => this.drawTile(surface, palette, weights, layer, head));
    });
  }

  private drawTile(surface: Surface, palette: Palette, weights: Matrix, layer: number, head: number): void {
    const { focus, colors, isOff } = this.options;
    const { x, y } = this.place(layer, head);
    if (layer === 0) {
      const style = { size: this.fontSize, color: palette.muted, anchor: "middle" } as const;
      surface.text(x + this.tileWidth / 2, this.top - this.fontSize, `Head ${head + 1}`, style);
    }
    surface.rect(x, y, this.tileWidth, this.tileHeight, at(palette.ramp, 0));
    surface.cells(x, y, this.tileWidth, this.tileHeight, quantize(weights, colors), palette.ramp);
    if (isOff(layer, head)) hatch(surface, x, y, this.tileWidth, this.tileHeight, palette.edit);
    const isFocused = focus?.row === layer && focus.column === head;
    surface.outline(x - 1, y - 1, this.tileWidth + 2, this.tileHeight + 2, isFocused ? palette.accent : palette.line, isFocused ? 3 : 1);
    this.drawEffect(surface, palette, layer, head);
  }

  /** Below a tile: the change of the log-probability without the head, and its share of the largest. */
  private drawEffect(surface: Surface, palette: Palette, layer: number, head: number): void {
    const { effects } = this.options;
    const effect = effects.find((each) => each.layer === layer && each.head === head);
    if (!effect || effect.isOff) return;
    const { x, y } = this.place(layer, head);
    const top = y + this.tileHeight + 6;
    const largest = Math.max(...effects.map(({ change }) => Math.abs(change))) || 1;
    surface.rect(x, top, this.tileWidth, 4, palette.line);
    if (!effect.isIdle) surface.rect(x, top, (this.tileWidth * Math.abs(effect.change)) / largest, 4, palette.accent);
    const style = { size: this.fontSize, color: effect.isIdle ? palette.muted : palette.ink, anchor: "middle" } as const;
    const idle = measureText("no effect", this.fontSize) <= this.tileWidth ? "no effect" : "≈ 0";
    surface.text(x + this.tileWidth / 2, top + 4 + this.fontSize, effect.isIdle ? idle : formatNumber(effect.change), style);
  }

  private place(layer: number, head: number): { x: number; y: number } {
    return { x: this.left + head * (this.tileWidth + this.gap), y: this.top + layer * (this.tileHeight + this.captionHeight + this.gap) };
  }

  find(x: number, y: number): Cell | null {
    const column = Math.floor((x - this.left) / (this.tileWidth + this.gap));
    const row = Math.floor((y - this.top) / (this.tileHeight + this.captionHeight + this.gap));
    return this.options.maps[row]?.[column] ? { row, column } : null;
  }
}

export interface Bar {
  label: string;
  value: number;
  isChosen: boolean;
}

/** Horizontal bars with a percentage each. */
export class BarsFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly left: number;

  constructor(
    readonly title: string,
    readonly bars: readonly Bar[],
    readonly fontSize: number,
  ) {
    this.left = 7 * fontSize;
    this.width = this.left + 360;
    this.height = (2.5 + 2 * bars.length) * fontSize;
  }

  draw(surface: Surface, palette: Palette): void {
    const { fontSize: size, left, width } = this;
    const end = width - 4.5 * size;
    surface.text(left, size, this.title, { size: SMALL * size, color: palette.muted });
    this.bars.forEach((bar, index) => {
      const y = (3 + 2 * index) * size;
      surface.text(left - 10, y, fitText(labelToken(bar.label), size, left - 14), { size, color: palette.ink, anchor: "end", bold: bar.isChosen });
      surface.rect(left, y - 0.75 * size, Math.max(1, bar.value * (end - left)), 1.5 * size, bar.isChosen ? palette.accent : palette.line);
      surface.text(width - 4, y, formatPercent(bar.value), { size: SMALL * size, color: palette.ink, anchor: "end" });
    });
  }
}

export interface AlignmentOptions {
  /** The weight of each word of the source (column) for each word of the output (row); null without attention. */
  weights: Matrix | null;
  source: readonly string[];
  output: readonly string[];
  /** The probability of each word of the output. */
  probabilities: readonly number[];
  fontSize: number;
}

/** Source and output as two lines of words. The width of a ribbon is a weight; the line below a word is its probability. */
export class AlignmentFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly left: number;
  private readonly keys: Box[];
  private readonly queries: Box[];

  constructor(readonly options: AlignmentOptions) {
    const { source, output, weights, fontSize: size } = options;
    this.left = measureText("output", SMALL * size) + 2.5 * size;
    const top = 0.5 * size + (weights ? WIDEST : 0);
    this.height = top + (weights ? 11 : 4.5) * size;
    const lines = [placeWords(source, size, top), placeWords(output, size, this.height - 2.4 * size)] as const;
    const [longest] = lines.map(measureLine).sort((one, other) => other - one);
    const center = (boxes: Box[]): Box[] => boxes.map((box) => ({ ...box, left: this.left + box.left + (longest! - measureLine(boxes)) / 2 }));
    [this.keys, this.queries] = [center(lines[0]), center(lines[1])];
    this.width = this.left + longest! + size;
  }

  draw(surface: Surface, palette: Palette): void {
    const { left, keys, queries, options: { source, output, weights, probabilities, fontSize: size } } = this;
    const ribbons = weights ? layRibbons(weights, keys, queries) : [];
    const isStacked = true;
    for (const { from, to, width } of ribbons) surface.curve(...from, ...to, palette.accent, width, OPACITY, isStacked);
    const [first] = ribbons;
    if (first) new LineScale(size, (weight) => [(weight * first.width) / first.weight, OPACITY]).draw(new PlacedSurface(surface, left, 0.2 * WIDEST), palette);
    const drawLine = (name: string, words: readonly string[], boxes: readonly Box[]): void => {
      boxes.forEach((box, index) => {
        const middle = box.top + box.height / 2;
        if (!index) surface.text(left - 1.5 * size, middle, name, { size: SMALL * size, color: palette.muted, anchor: "end" });
        surface.text(box.left + box.width / 2, middle, labelToken(at(words, index)), { size, color: palette.ink, anchor: "middle" });
      });
    };
    drawLine("source", source, keys);
    drawLine("output", output, queries);
    queries.forEach(({ left: x, top, width, height }, index) => {
      surface.rect(x, top + height, width, 0.2 * size, palette.line);
      surface.rect(x, top + height, width * (probabilities[index] ?? 0), 0.2 * size, palette.accent);
    });
  }
}

/** The opacity of ribbons, which cross each other. */
const OPACITY = 0.55;

/** Place words in a line, with a space between them. */
function placeWords(words: readonly string[], size: number, top: number): Box[] {
  let left = 0;
  return words.map((word) => {
    const width = Math.max(measureText(labelToken(word), size), 0.8 * size);
    left += width + 0.7 * size;
    return { left: left - width - 0.7 * size, top, width, height: 1.4 * size };
  });
}

function measureLine(boxes: readonly Box[]): number {
  const last = boxes.at(-1);
  return last ? last.left + last.width : 0;
}

/** Figures from left to right, each under its title. Those that do not fit on a page are below. */
export class FigureRow implements Figure {
  width = 0;
  height = 0;
  private readonly titleHeight: number;
  private readonly places: (readonly [x: number, y: number])[] = [];

  constructor(
    readonly parts: readonly (readonly [title: string, figure: Figure])[],
    readonly fontSize: number,
  ) {
    this.titleHeight = 2.2 * fontSize;
    let [x, y] = [0, 0];
    for (const [, { width, height }] of parts) {
      if (x && x + width > WIDEST_ROW * fontSize) [x, y] = [0, this.height + GAP];
      this.places.push([x, y]);
      this.width = Math.max(this.width, x + width);
      this.height = Math.max(this.height, y + this.titleHeight + height);
      x += width + GAP;
    }
  }

  draw(surface: Surface, palette: Palette): void {
    this.parts.forEach(([title, figure], index) => {
      const [x, y] = at(this.places, index);
      surface.text(x + 4, y + this.titleHeight / 2, fitText(title, this.fontSize, figure.width), { size: this.fontSize, color: palette.ink, bold: true });
      figure.draw(new PlacedSurface(surface, x, y + this.titleHeight), palette);
    });
  }
}

/** A figure that was laid out for another size of its text. */
export class ScaledFigure implements Figure {
  readonly width: number;
  readonly height: number;

  constructor(
    readonly figure: Figure,
    readonly scale: number,
  ) {
    this.width = scale * figure.width;
    this.height = scale * figure.height;
  }

  draw(surface: Surface, palette: Palette): void {
    this.figure.draw(new PlacedSurface(surface, 0, 0, this.scale), palette);
  }
}

/** Draw a figure on a canvas, with the resolution of the screen. */
export function paint(canvas: HTMLCanvasElement, figure: Figure, palette: Palette, scale = devicePixelRatio || 1): void {
  canvas.width = Math.ceil(figure.width * scale);
  canvas.height = Math.ceil(figure.height * scale);
  canvas.style.width = `${figure.width}px`;
  canvas.style.height = `${figure.height}px`;
  const context = canvas.getContext("2d", { alpha: false })!;
  // The last row and column of pixels may be covered in part only.
  context.fillStyle = palette.background;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(scale, scale);
  figure.draw(new CanvasSurface(context), palette);
}

export function renderSvg(figure: Figure, palette: Palette): string {
  const surface = new SvgSurface(Math.ceil(figure.width), Math.ceil(figure.height));
  surface.rect(0, 0, surface.width, surface.height, palette.background);
  figure.draw(surface, palette);
  return surface.finish();
}
