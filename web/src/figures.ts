/** Figures: what the views draw, and what they export. */
import { at, type Matrix } from "./arrays.js";
import { levelOf, type Palette } from "./palette.js";
import { CanvasSurface, fitText, measureText, ShiftedSurface, SvgSurface, type Grid, type Surface } from "./surface.js";
import { formatPercent, labelToken, type Axes } from "./trace.js";

export interface Figure {
  width: number;
  height: number;
  draw(surface: Surface, palette: Palette): void;
  /** Return the figure as papers show it: laid out for a font size in pixels, without marks of the focus and the selection. */
  forPaper?(fontSize: number): Figure;
}

const LABEL_SIZE = 13;
const LONGEST_LABEL = 120;
const TITLE_HEIGHT = 32;
const GAP = 24;

/** A cell of a matrix. */
export interface Cell {
  row: number;
  column: number;
}

/** Return the level of each weight: from 0 to 1, from 0 to the largest of its row, or from −1 to 1. */
function quantize(weights: Matrix, colors: "fixed" | "row" | "signed"): Grid {
  const levels = new Uint8Array(weights.rows * weights.columns);
  for (let row = 0; row < weights.rows; row++) {
    const values = weights.row(row);
    const largest = colors === "row" ? values.reduce((best, value) => Math.max(best, value), 0) || 1 : 1;
    values.forEach((value, column) => {
      levels[row * weights.columns + column] = levelOf(colors === "signed" ? (value + 1) / 2 : value / largest);
    });
  }
  return { rows: weights.rows, columns: weights.columns, levels };
}

export interface MatrixOptions {
  weights: Matrix;
  axes: Axes;
  colors: "fixed" | "row" | "signed";
  /** The space that the figure may take. It is larger if cells would become invisible. */
  width: number;
  height: number;
  focus: Cell | null;
  selected: readonly number[];
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

  constructor(readonly options: MatrixOptions) {
    const { weights, axes } = options;
    this.rows = axes.rows.map(labelToken);
    this.columns = axes.columns.map(labelToken);
    const longest = (labels: string[]): number =>
      labels.reduce((width, label) => Math.max(width, Math.min(measureText(label, LABEL_SIZE), LONGEST_LABEL)), 0);
    this.left = Math.max(longest(this.rows) + 14, measureText(`${axes.rowName} ↓`, 11) + 10);
    const fitting = (options.width - this.left - 12) / Math.max(weights.columns, 1);
    this.cellWidth = Math.max(2, Math.min(56, fitting));
    const columnLength = longest(this.columns);
    this.isRotated = columnLength > this.cellWidth - 2;
    this.top = (this.isRotated ? columnLength : LABEL_SIZE) + 34;
    // Rows stay legible while columns are: a long output scrolls.
    const fittingHeight = (options.height - this.top - 8) / Math.max(weights.rows, 1);
    this.cellHeight = Math.max(Math.min(20, this.cellWidth), Math.min(40, fittingHeight), 2);
    this.width = this.left + weights.columns * this.cellWidth + 12;
    this.height = this.top + weights.rows * this.cellHeight + 8;
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    this.drawCells(surface, palette);
    this.drawLabels(surface, palette);
    this.drawSelection(surface, palette);
  }

  private drawCells(surface: Surface, palette: Palette): void {
    const { weights, colors } = this.options;
    const ramp = colors === "signed" ? palette.diverging : palette.ramp;
    const grid = quantize(weights, colors);
    if (Math.min(this.cellWidth, this.cellHeight) <= 8) {
      const [width, height] = [weights.columns * this.cellWidth, weights.rows * this.cellHeight];
      surface.rect(this.left, this.top, width, height, at(ramp, 0));
      surface.cells(this.left, this.top, width, height, grid, ramp);
      return;
    }
    grid.levels.forEach((level, index) => {
      const x = this.left + (index % weights.columns) * this.cellWidth;
      const y = this.top + Math.floor(index / weights.columns) * this.cellHeight;
      surface.rect(x, y, this.cellWidth - 1, this.cellHeight - 1, at(ramp, level));
    });
  }

  private drawLabels(surface: Surface, palette: Palette): void {
    const { axes, focus } = this.options;
    const every = (size: number): number => Math.max(1, Math.ceil(12 / size));
    const columnStep = every(this.cellWidth);
    const rowStep = every(this.cellHeight);
    surface.text(this.left, 9, `${axes.columnName} →`, { size: 11, color: palette.muted });
    surface.text(this.left - 8, this.top - 10, `${axes.rowName} ↓`, { size: 11, color: palette.muted, anchor: "end" });
    this.columns.forEach((label, column) => {
      const isFocused = focus?.column === column;
      if (column % columnStep && !isFocused) return;
      const x = this.left + (column + 0.5) * this.cellWidth;
      const style = { size: LABEL_SIZE, color: isFocused ? palette.accent : palette.ink, bold: isFocused };
      const text = fitText(label, LABEL_SIZE, LONGEST_LABEL);
      if (this.isRotated) surface.text(x, this.top - 8, text, { ...style, rotate: -90 });
      else surface.text(x, this.top - 12, text, { ...style, anchor: "middle" });
    });
    this.rows.forEach((label, row) => {
      const isFocused = focus?.row === row;
      if (row % rowStep && !isFocused) return;
      const y = this.top + (row + 0.5) * this.cellHeight;
      const style = { size: LABEL_SIZE, color: isFocused ? palette.accent : palette.ink, bold: isFocused };
      surface.text(this.left - 8, y, fitText(label, LABEL_SIZE, LONGEST_LABEL), { ...style, anchor: "end" });
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

export interface LinesOptions {
  weights: Matrix;
  axes: Axes;
  focus: Cell | null;
  width: number;
}

/** Curves from keys (left) to queries (right). The opacity of a curve is its weight. */
export class LinesFigure implements Figure {
  readonly width: number;
  readonly height: number;
  readonly rowHeight = 26;
  private readonly side: number;

  constructor(readonly options: LinesOptions) {
    const { axes } = options;
    const longest = [...axes.rows, ...axes.columns].map((token) => measureText(labelToken(token), 15));
    this.side = Math.min(Math.max(60, ...longest) + 16, 220);
    this.width = Math.min(options.width, 2 * this.side + 460);
    this.height = Math.max(axes.rows.length, axes.columns.length) * this.rowHeight + 48;
  }

  private y(index: number, count: number): number {
    const tallest = Math.max(this.options.axes.rows.length, this.options.axes.columns.length);
    return 40 + (index + 0.5 + (tallest - count) / 2) * this.rowHeight;
  }

  draw(surface: Surface, palette: Palette): void {
    const { axes, weights, focus } = this.options;
    const right = this.width - this.side;
    surface.rect(0, 0, this.width, this.height, palette.background);
    surface.text(this.side - 10, 14, axes.columnName, { size: 12, color: palette.muted, anchor: "end" });
    surface.text(right + 10, 14, axes.rowName, { size: 12, color: palette.muted });
    for (let row = 0; row < weights.rows; row++) {
      const isDimmed = focus !== null && focus.row !== row;
      weights.row(row).forEach((weight, column) => {
        if (weight < 0.01) return;
        const opacity = isDimmed ? weight * 0.18 : Math.min(1, weight * 0.9 + 0.05);
        const from = this.y(column, weights.columns);
        surface.curve(this.side, from, right, this.y(row, weights.rows), palette.accent, 0.75 + 3.5 * weight, opacity);
      });
    }
    axes.columns.forEach((token, column) => {
      const weight = focus ? weights.at(focus.row, column) : 0;
      const style = { size: 15, color: weight > 0.15 ? palette.accent : palette.ink, bold: weight > 0.15 };
      surface.text(this.side - 10, this.y(column, weights.columns), fitText(labelToken(token), 15, this.side - 14), { ...style, anchor: "end" });
    });
    axes.rows.forEach((token, row) => {
      const isFocused = focus?.row === row;
      const style = { size: 15, color: isFocused ? palette.accent : palette.ink, bold: isFocused };
      surface.text(right + 10, this.y(row, weights.rows), fitText(labelToken(token), 15, this.side - 14), style);
    });
  }

  find(x: number, y: number): Cell | null {
    const { weights } = this.options;
    const index = (count: number): number => Math.floor((y - 40) / this.rowHeight - (Math.max(weights.rows, weights.columns) - count) / 2);
    const row = index(weights.rows);
    if (row < 0 || row >= weights.rows || x < this.width / 2) return null;
    return { row, column: this.options.focus?.column ?? 0 };
  }
}

export interface GridOptions {
  /** Layers × heads. */
  maps: Matrix[][];
  colors: "fixed" | "row";
  width: number;
  focus: Cell;
}

/** A thumbnail for each layer and head: in its cells, a row is a layer and a column is a head. */
export class GridFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly tileWidth: number;
  private readonly tileHeight: number;
  private readonly left = 64;
  private readonly top = 30;
  private readonly gap = 14;

  constructor(readonly options: GridOptions) {
    const heads = Math.max(...options.maps.map((layer) => layer.length));
    const first = at(at(options.maps, 0), 0);
    this.tileWidth = Math.max(48, Math.min(230, (options.width - this.left) / heads - this.gap));
    this.tileHeight = Math.max(36, Math.min(this.tileWidth * (first.rows / first.columns), this.tileWidth * 1.4));
    this.width = this.left + heads * (this.tileWidth + this.gap);
    this.height = this.top + options.maps.length * (this.tileHeight + this.gap);
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    this.options.maps.forEach((heads, layer) => {
      const { y } = this.place(layer, 0);
      surface.text(this.left - 12, y + this.tileHeight / 2, `Layer ${layer + 1}`, { size: 12, color: palette.muted, anchor: "end" });
      heads.forEach((weights, head) => this.drawTile(surface, palette, weights, layer, head));
    });
  }

  private drawTile(surface: Surface, palette: Palette, weights: Matrix, layer: number, head: number): void {
    const { x, y } = this.place(layer, head);
    if (layer === 0) {
      const style = { size: 12, color: palette.muted, anchor: "middle" } as const;
      surface.text(x + this.tileWidth / 2, 12, `Head ${head + 1}`, style);
    }
    surface.rect(x, y, this.tileWidth, this.tileHeight, at(palette.ramp, 0));
    surface.cells(x, y, this.tileWidth, this.tileHeight, quantize(weights, this.options.colors), palette.ramp);
    const isFocused = this.options.focus.row === layer && this.options.focus.column === head;
    surface.outline(x - 1, y - 1, this.tileWidth + 2, this.tileHeight + 2, isFocused ? palette.accent : palette.line, isFocused ? 3 : 1);
  }

  private place(layer: number, head: number): { x: number; y: number } {
    return { x: this.left + head * (this.tileWidth + this.gap), y: this.top + layer * (this.tileHeight + this.gap) };
  }

  find(x: number, y: number): Cell | null {
    const column = Math.floor((x - this.left) / (this.tileWidth + this.gap));
    const row = Math.floor((y - this.top) / (this.tileHeight + this.gap));
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
  readonly height: number;

  constructor(
    readonly title: string,
    readonly bars: readonly Bar[],
    readonly width = 480,
  ) {
    this.height = 40 + bars.length * 28;
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    surface.text(10, 18, this.title, { size: 13, color: palette.muted });
    this.bars.forEach((bar, index) => {
      const y = 36 + index * 28;
      surface.text(100, y + 12, fitText(labelToken(bar.label), 14, 90), { size: 14, color: palette.ink, anchor: "end", bold: bar.isChosen });
      surface.rect(110, y, Math.max(1, bar.value * (this.width - 190)), 22, bar.isChosen ? palette.accent : palette.line);
      surface.text(this.width - 70, y + 12, formatPercent(bar.value), { size: 13, color: palette.ink });
    });
  }
}

/** Source and output: the probability of each output token is a line under it. */
export class TextFigure implements Figure {
  readonly width: number;
  readonly height = 130;

  constructor(
    readonly source: string,
    readonly tokens: readonly string[],
    readonly probabilities: readonly number[],
  ) {
    const output = tokens.reduce((sum, token) => sum + measureText(labelToken(token), 22) + 6, 0);
    this.width = Math.min(4000, Math.max(measureText(source, 22), output, 200) + 40);
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    surface.text(20, 34, this.source, { size: 22, color: palette.muted });
    let x = 20;
    this.tokens.forEach((token, index) => {
      const label = labelToken(token);
      const width = measureText(label, 22);
      surface.text(x, 84, label, { size: 22, color: palette.ink });
      surface.rect(x, 102, width, 5, palette.line);
      surface.rect(x, 102, width * (this.probabilities[index] ?? 0), 5, palette.accent);
      x += width + 6;
    });
  }
}

/** Several figures in a row, each under its title. */
export class FigureRow implements Figure {
  readonly width: number;
  readonly height: number;

  constructor(readonly parts: readonly (readonly [title: string, figure: Figure])[]) {
    this.width = parts.reduce((sum, [, figure]) => sum + figure.width + GAP, -GAP);
    this.height = TITLE_HEIGHT + Math.max(...parts.map(([, figure]) => figure.height));
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    let left = 0;
    for (const [title, figure] of this.parts) {
      surface.text(left + 4, TITLE_HEIGHT / 2, fitText(title, 15, figure.width), { size: 15, color: palette.ink, bold: true });
      figure.draw(new ShiftedSurface(surface, left, TITLE_HEIGHT), palette);
      left += figure.width + GAP;
    }
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
  const surface = new SvgSurface();
  figure.draw(surface, palette);
  return surface.finish(figure.width, figure.height);
}
