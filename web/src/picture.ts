/** Pictures of captioners under the weights of a word. */
import { at, decodeArray, type EncodedArray, type Matrix } from "./arrays.js";
import { ScaleFigure, type Scale } from "./color-scale.js";
import type { Figure } from "./figures.js";
import type { Palette } from "./palette.js";
import { fitText, PlacedSurface, type Surface } from "./surface.js";
import type { TraceDocument } from "./trace.js";
import { joinWord } from "./words.js";

export interface Weighted {
  picture: EncodedArray;
  grid: readonly [number, number];
  /** The weight of each cell; null without attention. */
  weights: Float64Array | null;
  isSmooth: boolean;
}

function createCanvas(width: number, height: number, paint?: (pixels: Uint8ClampedArray) => void): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  if (!paint) return canvas;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(width, height);
  paint(image.data);
  context.putImageData(image, 0, 0);
  return canvas;
}

function createPicture(encoded: EncodedArray): HTMLCanvasElement {
  const { shape, data } = decodeArray(encoded);
  return createCanvas(at(shape, 1), at(shape, 0), (pixels) => {
    pixels.fill(255);
    data.forEach((value, index) => (pixels[4 * Math.floor(index / 3) + (index % 3)] = value));
  });
}

/** How dark a cell without weight is, of 255. */
const DARKEST = 200;

/** The scale of weights on a picture. */
export const SHADES: Scale = {
  ticks: ["0", "maximum"],
  ramp: () => Array.from({ length: 256 }, (_, level) => Math.round(255 - DARKEST * (1 - level / 255))).map((gray) => `rgb(${gray},${gray},${gray})`),
};

/** Darken the cells with small weights. */
function createShade(weights: Float64Array, rows: number, columns: number): HTMLCanvasElement {
  const largest = Math.max(...weights) || 1;
  return createCanvas(columns, rows, (pixels) => {
    weights.forEach((weight, cell) => (pixels[4 * cell + 3] = DARKEST * (1 - weight / largest)));
  });
}

/** Return a picture as the address of a PNG file. */
export const createPictureUrl = (encoded: EncodedArray): string => createPicture(encoded).toDataURL();

/** Return the height of a picture with this width. */
export function findHeight(picture: EncodedArray, width: number): number {
  return Math.round((width * at(picture.shape, 0)) / at(picture.shape, 1));
}

/** Draw a picture, dark where the weights are small. */
export function drawWeighted(context: CanvasRenderingContext2D, weighted: Weighted): void {
  const { width, height } = context.canvas;
  const { picture, grid, weights, isSmooth } = weighted;
  context.imageSmoothingEnabled = true;
  context.drawImage(createPicture(picture), 0, 0, width, height);
  if (!weights) return;
  context.imageSmoothingEnabled = isSmooth;
  context.drawImage(createShade(weights, ...grid), 0, 0, width, height);
}

/** Return the picture under the weights of each output token; null if the document has no picture. */
export function createPictures(trace: TraceDocument, hypothesis: number, weights: Matrix | null, isSmooth: boolean, fontSize: number): PicturesFigure | null {
  const { picture, grid } = trace.source;
  if (!picture || !grid) return null;
  const weigh = (row: number): Weighted => ({ picture, grid, weights: weights && row < weights.rows ? weights.row(row) : null, isSmooth });
  const words = (trace.hypotheses[hypothesis]?.tokens ?? []).map((token, row) => [joinWord([token]), weigh(row)] as const);
  return new PicturesFigure(words.length ? words : [["The caption is empty", { picture, grid, weights: null, isSmooth }]], fontSize);
}

const TILE = 200;
const COLUMNS = 5;

/** The picture under the weights of each word. */
export class PicturesFigure implements Figure {
  readonly width: number;
  readonly height: number;
  private readonly tileHeight: number;

  private readonly top: number;
  private readonly scale: ScaleFigure | null;

  constructor(
    readonly words: readonly (readonly [word: string, weighted: Weighted])[],
    readonly fontSize: number,
  ) {
    const [, first] = at(words, 0);
    this.tileHeight = findHeight(first.picture, TILE);
    this.scale = first.weights && new ScaleFigure(SHADES, 0.85 * fontSize);
    this.width = 12 + Math.min(COLUMNS, words.length) * (TILE + 12);
    this.top = 12 + (this.scale ? this.scale.height + fontSize : 0);
    this.height = this.top + Math.ceil(words.length / COLUMNS) * (this.tileHeight + 2.5 * fontSize);
  }

  draw(surface: Surface, palette: Palette): void {
    const size = this.fontSize;
    this.scale?.draw(new PlacedSurface(surface, 12, 12), palette);
    this.words.forEach(([word, weighted], index) => {
      const x = 12 + (index % COLUMNS) * (TILE + 12);
      const y = this.top + Math.floor(index / COLUMNS) * (this.tileHeight + 2.5 * size);
      surface.text(x, y + size, fitText(word, size, TILE), { size, color: palette.ink, bold: true });
      const canvas = createCanvas(2 * TILE, 2 * this.tileHeight);
      drawWeighted(canvas.getContext("2d")!, weighted);
      surface.image(x, y + 1.8 * size, TILE, this.tileHeight, canvas);
    });
  }
}
