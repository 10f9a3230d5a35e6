/** Ribbons between two lines of words: the width of a ribbon is an attention weight. */
import { at, average, type Matrix } from "./arrays.js";

/** Where a word is drawn. */
export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** A curve from a key to a query. */
export interface Ribbon {
  row: number;
  column: number;
  weight: number;
  /** Its width, and its two ends. */
  width: number;
  from: Point;
  to: Point;
}

export type Point = readonly [x: number, y: number];

/** Narrower ribbons are not drawn: a line of words would be a net. */
const LEAST_WEIGHT = 0.04;
/** The width of the weight 1, in pixels. It is less if words are narrow, so that ribbons of neighbors are apart. */
export const WIDEST = 26;

/** Whether the keys are above the queries; otherwise, they are on the left side of the queries. */
export function isStacked(keys: readonly Box[], queries: readonly Box[]): boolean {
  return Math.max(...keys.map((box) => box.left + box.width)) > Math.min(...queries.map((box) => box.left));
}

/** Lay a ribbon for each weight. The ribbons of a word are side by side at the edge of its box. */
export function layRibbons(weights: Matrix, keys: readonly Box[], queries: readonly Box[]): Ribbon[] {
  if (!keys.length || !queries.length) return [];
  const stacked = isStacked(keys, queries);
  const extents = queries.map((box) => (stacked ? box.width : box.height));
  const unit = Math.min(WIDEST, average(extents));
  const shown = queries.flatMap((_, row) =>
    keys.flatMap((_, column) => {
      const weight = weights.at(row, column);
      return weight >= LEAST_WEIGHT ? [{ row, column, weight, width: weight * unit }] : [];
    }),
  );
  const starts = place(shown, keys, ({ column }) => column, stacked, false);
  const ends = place(shown, queries, ({ row }) => row, stacked, true);
  return shown.map((ribbon, index) => ({ ...ribbon, from: at(starts, index), to: at(ends, index) }));
}

interface Strand {
  row: number;
  column: number;
  width: number;
}

/** Return the end of each ribbon: at the near edge of its box, beside the other ribbons of this box, around its center. */
function place(strands: readonly Strand[], boxes: readonly Box[], find: (strand: Strand) => number, stacked: boolean, isQuery: boolean): Point[] {
  const totals = boxes.map(() => 0);
  for (const strand of strands) totals[find(strand)]! += strand.width;
  const used = boxes.map(() => 0);
  return strands.map((strand) => {
    const index = find(strand);
    const box = at(boxes, index);
    const extent = stacked ? box.width : box.height;
    const total = at(totals, index);
    // Ribbons that are wider than the box together overlap.
    const share = Math.min(1, extent / total);
    const offset = extent / 2 + (at(used, index) + strand.width / 2 - total / 2) * share;
    used[index]! += strand.width;
    return stacked ? [box.left + offset, isQuery ? box.top : box.top + box.height] : [isQuery ? box.left : box.left + box.width, box.top + offset];
  });
}

/** Return a ribbon as the data of an SVG path. It leaves and enters the boxes at a right angle. */
export function drawRibbon({ from, to }: Ribbon, stacked: boolean): string {
  const [[x1, y1], [x2, y2]] = [from, to];
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const points = stacked ? [x1, y, x2, y] : [x, y1, x, y2];
  return `M${round([x1, y1])}C${round([...points, x2, y2])}`;
}

const round = (values: readonly number[]): string => values.map((value) => Math.round(10 * value) / 10).join(" ");
