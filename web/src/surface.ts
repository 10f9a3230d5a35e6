/** Surfaces: the same drawing goes to a canvas on the screen, to a PNG file or to an SVG file. */

import { at, cached } from "./arrays.js";

export interface TextStyle {
  size: number;
  color: string;
  anchor?: "start" | "middle" | "end";
  /** Degrees, clockwise. */
  rotate?: number;
  bold?: boolean;
  /** A line through the text, or above it. */
  mark?: { line: "line-through" | "overline"; color: string } | undefined;
}

export interface Surface {
  rect(x: number, y: number, width: number, height: number, fill: string): void;
  /** A rectangle of many cells without gaps. The level of a cell is an index of the colors; level 0 is left out. */
  cells(x: number, y: number, width: number, height: number, grid: Grid, colors: readonly string[]): void;
  image(x: number, y: number, width: number, height: number, image: HTMLCanvasElement): void;
  outline(x: number, y: number, width: number, height: number, color: string, stroke: number): void;
  text(x: number, y: number, text: string, style: TextStyle): void;
  line(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity?: number): void;
  /** A curve that leaves and enters horizontally, or vertically. */
  curve(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity: number, isVertical?: boolean): void;
}

/** Levels of cells in C order. */
export interface Grid {
  rows: number;
  columns: number;
  levels: Uint8Array;
}

export const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK SC", Arial, sans-serif';

const ANCHORS = { start: "left", middle: "center", end: "right" } as const;

export class CanvasSurface implements Surface {
  constructor(private readonly context: CanvasRenderingContext2D) {}

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  /** One image instead of a rectangle per cell: a page of many heads has a million cells. */
  cells(x: number, y: number, width: number, height: number, grid: Grid, colors: readonly string[]): void {
    const canvas = document.createElement("canvas");
    canvas.width = grid.columns;
    canvas.height = grid.rows;
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(grid.columns, grid.rows);
    const pixels = new Uint32Array(image.data.buffer);
    const table = packColors(colors);
    grid.levels.forEach((level, index) => (pixels[index] = level ? at(table, level) : 0));
    context.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(canvas, x, y, width, height);
  }

  image(x: number, y: number, width: number, height: number, image: HTMLCanvasElement): void {
    this.context.imageSmoothingEnabled = true;
    this.context.drawImage(image, x, y, width, height);
  }

  outline(x: number, y: number, width: number, height: number, color: string, stroke: number): void {
    this.context.strokeStyle = color;
    this.context.lineWidth = stroke;
    this.context.strokeRect(x, y, width, height);
  }

  text(x: number, y: number, text: string, style: TextStyle): void {
    const { context } = this;
    context.save();
    context.translate(x, y);
    context.rotate(((style.rotate ?? 0) * Math.PI) / 180);
    context.font = `${style.bold ? "600 " : ""}${style.size}px ${FONT}`;
    context.fillStyle = style.color;
    context.textAlign = ANCHORS[style.anchor ?? "start"];
    context.textBaseline = "middle";
    context.fillText(text, 0, 0);
    if (style.mark) {
      const { actualBoundingBoxLeft: before, actualBoundingBoxRight: after } = context.measureText(text);
      context.fillStyle = style.mark.color;
      context.fillRect(-before, style.mark.line === "overline" ? -0.65 * style.size : -0.5, before + after, Math.max(1.5, 0.1 * style.size));
    }
    context.restore();
  }

  line(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity = 1): void {
    this.stroke(color, stroke, opacity, () => this.context.lineTo(x2, y2), x1, y1);
  }

  curve(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity: number, isVertical = false): void {
    this.stroke(color, stroke, opacity, () => this.context.bezierCurveTo(...findControls(x1, y1, x2, y2, isVertical), x2, y2), x1, y1);
  }

  private stroke(color: string, width: number, opacity: number, draw: () => void, x: number, y: number): void {
    const { context } = this;
    context.globalAlpha = opacity;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x, y);
    draw();
    context.stroke();
    context.globalAlpha = 1;
  }
}

/** Return colors `rgb(r,g,b)` as pixels: red is the lowest byte. */
const packColors = cached((colors: readonly string[]): Uint32Array => {
  const pack = (color: string): number => {
    const [red = 0, green = 0, blue = 0] = color.match(/\d+/g)!.map(Number);
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  };
  return Uint32Array.from(colors, pack);
});

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" } as const;
const escapeText = (text: string): string =>
  // Control characters are not allowed in XML.
  text.replace(/[&<>"]/g, (character) => ESCAPES[character as keyof typeof ESCAPES]).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
const round = (value: number): string => String(Math.round(value * 100) / 100);

/** Return the control points of a curve between two points. */
function findControls(x1: number, y1: number, x2: number, y2: number, isVertical: boolean): [number, number, number, number] {
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
  return isVertical ? [x1, y, x2, y] : [x, y1, x, y2];
}

/** How far the baseline of a text is below its middle, as a share of its size. */
const BASELINE = 0.35;

export class SvgSurface implements Surface {
  private readonly parts: string[] = [];

  constructor(
    readonly width: number,
    readonly height: number,
  ) {}

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    this.parts.push(`<rect ${place(x, y, width, height)} fill="${fill}"/>`);
  }

  cells(x: number, y: number, width: number, height: number, grid: Grid, colors: readonly string[]): void {
    const [cellWidth, cellHeight] = [width / grid.columns, height / grid.rows];
    grid.levels.forEach((level, index) => {
      if (!level) return;
      const [row, column] = [Math.floor(index / grid.columns), index % grid.columns];
      // The overlap hides the seams between cells that some programs draw.
      this.rect(x + column * cellWidth, y + row * cellHeight, cellWidth + 0.3, cellHeight + 0.3, at(colors, level));
    });
  }

  image(x: number, y: number, width: number, height: number, image: HTMLCanvasElement): void {
    this.parts.push(`<image ${place(x, y, width, height)} href="${image.toDataURL("image/png")}"/>`);
  }

  outline(x: number, y: number, width: number, height: number, color: string, stroke: number): void {
    this.parts.push(`<rect ${place(x, y, width, height)} fill="none" stroke="${color}" stroke-width="${stroke}"/>`);
  }

  text(x: number, y: number, text: string, style: TextStyle): void {
    const rotate = style.rotate ? ` transform="rotate(${style.rotate} ${round(x)} ${round(y)})"` : "";
    // Few programs read dominant-baseline.
    this.parts.push(
      `<text x="${round(x)}" y="${round(y + BASELINE * style.size)}" font-size="${round(style.size)}" fill="${style.color}" ` +
        `text-anchor="${style.anchor ?? "start"}" xml:space="preserve"${style.bold ? ' font-weight="600"' : ""}${style.mark ? ` text-decoration="${style.mark.line}"` : ""}${rotate}>${escapeText(text)}</text>`,
    );
  }

  line(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity = 1): void {
    this.path(`M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}`, color, stroke, opacity);
  }

  curve(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity: number, isVertical = false): void {
    const points = [...findControls(x1, y1, x2, y2, isVertical), x2, y2].map(round);
    this.path(`M${round(x1)} ${round(y1)}C${points.join(" ")}`, color, stroke, opacity);
  }

  private path(path: string, color: string, stroke: number, opacity: number): void {
    this.parts.push(
      `<path d="${path}" fill="none" stroke="${color}" stroke-width="${round(stroke)}" stroke-opacity="${round(opacity)}"/>`,
    );
  }

  finish(): string {
    const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
    const font = escapeText(FONT);
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${font}">${this.parts.join("")}</svg>\n`;
  }
}

/** A part of a surface, with its own origin and scale. */
export class PlacedSurface implements Surface {
  constructor(
    private readonly surface: Surface,
    private readonly left: number,
    private readonly top: number,
    private readonly scale = 1,
  ) {}

  private x(value: number): number {
    return this.left + value * this.scale;
  }

  private y(value: number): number {
    return this.top + value * this.scale;
  }

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    this.surface.rect(this.x(x), this.y(y), width * this.scale, height * this.scale, fill);
  }

  cells(x: number, y: number, width: number, height: number, grid: Grid, colors: readonly string[]): void {
    this.surface.cells(this.x(x), this.y(y), width * this.scale, height * this.scale, grid, colors);
  }

  image(x: number, y: number, width: number, height: number, image: HTMLCanvasElement): void {
    this.surface.image(this.x(x), this.y(y), width * this.scale, height * this.scale, image);
  }

  outline(x: number, y: number, width: number, height: number, color: string, stroke: number): void {
    this.surface.outline(this.x(x), this.y(y), width * this.scale, height * this.scale, color, stroke * this.scale);
  }

  text(x: number, y: number, text: string, style: TextStyle): void {
    this.surface.text(this.x(x), this.y(y), text, { ...style, size: style.size * this.scale });
  }

  line(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity?: number): void {
    this.surface.line(this.x(x1), this.y(y1), this.x(x2), this.y(y2), color, stroke * this.scale, opacity);
  }

  curve(x1: number, y1: number, x2: number, y2: number, color: string, stroke: number, opacity: number, isVertical?: boolean): void {
    this.surface.curve(this.x(x1), this.y(y1), this.x(x2), this.y(y2), color, stroke * this.scale, opacity, isVertical);
  }
}

const place = (x: number, y: number, width: number, height: number): string =>
  `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;

let measuring: CanvasRenderingContext2D | null = null;

/** Return the width of a text in pixels. */
export function measureText(text: string, size: number): number {
  measuring ??= document.createElement("canvas").getContext("2d")!;
  measuring.font = `${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

/** Shorten a text to a width in pixels. */
export function fitText(text: string, size: number, width: number): string {
  if (measureText(text, size) <= width) return text;
  const characters = [...text];
  while (characters.length > 1 && measureText(`${characters.join("")}…`, size) > width) characters.pop();
  return `${characters.join("")}…`;
}
