/** The tree of beam search: candidates of each step, and which of them were kept. */
import type { Figure } from "./figures.js";
import type { Palette } from "./palette.js";
import { fitText, type Surface } from "./surface.js";
import { labelToken, type BeamNode } from "./trace.js";

export interface PlacedNode extends BeamNode {
  x: number;
  y: number;
  from: PlacedNode | null;
  isOnPath: boolean;
}

export const COLUMN = 92;
const LINE = 30;
export const FIRST_X = 70;
const FIRST_Y = 34;
/** Half the width and half the height of a node. */
export const HALF_WIDTH = 32;
const HALF_HEIGHT = 11;

/** Place the candidates of beam search: a column for each step. */
export function placeBeam(beam: readonly BeamNode[][], path: readonly number[]): PlacedNode[][] {
  let slots = new Map<number, PlacedNode>();
  return beam.map((candidates, step) => {
    const placed = candidates.map((node, index): PlacedNode => {
      const from = slots.get(node.parent) ?? null;
      const isOnPath = (step === 0 || (from?.isOnPath ?? false)) && path[step] === node.id;
      return { ...node, x: FIRST_X + step * COLUMN, y: FIRST_Y + index * LINE, from, isOnPath };
    });
    slots = new Map(placed.filter((node) => node.slot !== null).map((node) => [node.slot!, node]));
    return placed;
  });
}

/** Return the size of a placed tree. */
export function measureBeam(placed: readonly PlacedNode[][]): { width: number; height: number } {
  return { width: 110 + placed.length * COLUMN, height: 44 + Math.max(...placed.map((nodes) => nodes.length)) * LINE };
}

/** Return where the edge to a node starts. */
export function findStart(node: PlacedNode): readonly [x: number, y: number] {
  return node.from ? [node.from.x + HALF_WIDTH, node.from.y] : [10, FIRST_Y];
}

export class BeamFigure implements Figure {
  readonly width: number;
  readonly height: number;

  constructor(readonly placed: readonly PlacedNode[][]) {
    ({ width: this.width, height: this.height } = measureBeam(placed));
  }

  draw(surface: Surface, palette: Palette): void {
    surface.rect(0, 0, this.width, this.height, palette.background);
    for (const node of this.placed.flat()) {
      const [x, y] = findStart(node);
      surface.curve(x, y, node.x - HALF_WIDTH, node.y, node.isOnPath ? palette.accent : palette.muted, node.isOnPath ? 2.5 : 1, node.isOnPath ? 1 : 0.5);
    }
    this.placed.forEach((nodes, step) => {
      surface.text(FIRST_X + step * COLUMN, 10, String(step + 1), { size: 11, color: palette.muted, anchor: "middle" });
      for (const node of nodes) this.drawNode(surface, palette, node);
    });
  }

  private drawNode(surface: Surface, palette: Palette, node: PlacedNode): void {
    const [x, y, width, height] = [node.x - HALF_WIDTH, node.y - HALF_HEIGHT, 2 * HALF_WIDTH, 2 * HALF_HEIGHT];
    const isFinished = node.outcome === "finished";
    surface.rect(x, y, width, height, isFinished ? palette.accent : palette.background);
    surface.outline(x, y, width, height, node.outcome === "pruned" ? palette.line : palette.accent, 1.3);
    const color = { finished: palette.background, pruned: palette.muted, kept: palette.ink }[node.outcome];
    surface.text(node.x, node.y, fitText(labelToken(node.token), 13, width - 6), { size: 13, color, anchor: "middle", bold: isFinished });
  }
}
