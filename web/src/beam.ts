/** The tree of beam search: candidates of each step, and which of them were kept. */
import type { Figure } from "./figures.js";
import type { Palette } from "./palette.js";
import { fitText, type Surface } from "./surface.js";
import { formatNumber, labelToken, type BeamNode } from "./trace.js";

export interface PlacedNode extends BeamNode {
  x: number;
  y: number;
  from: PlacedNode | null;
  isOnPath: boolean;
}

export const COLUMN = 92;
const LINE = 42;
export const FIRST_X = 70;
const FIRST_Y = 40;
/** Half the width and half the height of a node. */
export const HALF_WIDTH = 32;
export const HALF_HEIGHT = 17;
/** The size of the text in a node, in pixels. */
export const NODE_TEXT = 13;
/** The size of the score in a node, and how far the token is above the middle, and the score below it. */
export const [SCORE_TEXT, TOKEN_Y, SCORE_Y] = [11, -6, 9];

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

/** Return the nodes from the first step to a node. */
export function listPath(node: PlacedNode): PlacedNode[] {
  return node.from ? [...listPath(node.from), node] : [node];
}

/** Return the size of a placed tree. */
export function measureBeam(placed: readonly PlacedNode[][]): { width: number; height: number } {
  return { width: 110 + placed.length * COLUMN, height: FIRST_Y - HALF_HEIGHT + Math.max(...placed.map((nodes) => nodes.length)) * LINE };
}

/** Return where the edge to a node starts. */
export function findStart(node: PlacedNode): readonly [x: number, y: number] {
  return node.from ? [node.from.x + HALF_WIDTH, node.from.y] : [10, FIRST_Y];
}

const OUTCOMES: readonly BeamNode["outcome"][] = ["kept", "finished", "pruned"];

function drawNode(surface: Surface, palette: Palette, node: Pick<PlacedNode, "x" | "y" | "outcome">, label: string, score = ""): void {
  const [x, y, width, height] = [node.x - HALF_WIDTH, node.y - HALF_HEIGHT, 2 * HALF_WIDTH, 2 * HALF_HEIGHT];
  const isFinished = node.outcome === "finished";
  surface.rect(x, y, width, height, isFinished ? palette.accent : palette.background);
  surface.outline(x, y, width, height, node.outcome === "pruned" ? palette.line : palette.accent, 1.3);
  const color = { finished: palette.background, pruned: palette.muted, kept: palette.ink }[node.outcome];
  surface.text(node.x, node.y + (score ? TOKEN_Y : 0), fitText(label, NODE_TEXT, width - 6), { size: NODE_TEXT, color, anchor: "middle", bold: isFinished });
  surface.text(node.x, node.y + SCORE_Y, score, { size: SCORE_TEXT, color, anchor: "middle" });
}

/** The tree of beam search, and below it what its boxes mean. */
export class BeamFigure implements Figure {
  readonly width: number;
  readonly height: number;

  constructor(readonly placed: readonly PlacedNode[][]) {
    const { width, height } = measureBeam(placed);
    this.width = width;
    this.height = height + 2 * HALF_HEIGHT;
  }

  draw(surface: Surface, palette: Palette): void {
    for (const node of this.placed.flat()) {
      const [x, y] = findStart(node);
      surface.curve(x, y, node.x - HALF_WIDTH, node.y, node.isOnPath ? palette.accent : palette.muted, node.isOnPath ? 2.5 : 1, node.isOnPath ? 1 : 0.5);
    }
    this.placed.forEach((nodes, step) => {
      surface.text(FIRST_X + step * COLUMN, 10, String(step + 1), { size: 11, color: palette.muted, anchor: "middle" });
      for (const node of nodes) drawNode(surface, palette, node, labelToken(node.token), formatNumber(node.score, 2));
    });
    const y = this.height - HALF_HEIGHT - 2;
    OUTCOMES.forEach((outcome, index) => drawNode(surface, palette, { x: FIRST_X + index * COLUMN, y, outcome }, outcome));
  }
}
