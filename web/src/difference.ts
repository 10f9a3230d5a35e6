/** The difference of two maps: of the rows whose tokens both outputs have. */
import { Matrix } from "./arrays.js";
import type { SelectedMap } from "./selection.js";

/** The index of a token in one list, and in another. */
export type Pair = readonly [before: number, after: number];

/** Align two lists: return the indices of a longest list of items that both contain in the same order. */
export function align(before: readonly string[], after: readonly string[]): Pair[] {
  // The length of the longest common part behind each pair of positions.
  const lengths = new Matrix(before.length + 1, after.length + 1);
  const set = (row: number, column: number, length: number): void => void (lengths.data[row * lengths.columns + column] = length);
  for (let row = before.length - 1; row >= 0; row--) {
    for (let column = after.length - 1; column >= 0; column--) {
      const isSame = before[row] === after[column];
      set(row, column, isSame ? lengths.at(row + 1, column + 1) + 1 : Math.max(lengths.at(row + 1, column), lengths.at(row, column + 1)));
    }
  }
  const pairs: Pair[] = [];
  for (let row = 0, column = 0; row < before.length && column < after.length; ) {
    if (before[row] === after[column]) pairs.push([row++, column++]);
    else if (lengths.at(row + 1, column) >= lengths.at(row, column + 1)) row++;
    else column++;
  }
  return pairs;
}

/** Subtract the weights of aligned rows. Return null if the maps have other columns. */
export function subtract(before: SelectedMap, after: SelectedMap, pairs: readonly Pair[]): SelectedMap | null {
  const { columns } = after.weights;
  if (before.weights.columns !== columns) return null;
  const rows = pairs.map(([, row]) => row);
  const { marks: _, ...rest } = after;
  return {
    ...rest,
    weights: new Matrix(pairs.length, columns).map((_, index, column) => {
      const [left, right] = pairs[index]!;
      return after.weights.at(right, column) - before.weights.at(left, column);
    }),
    axes: { ...after.axes, rows: rows.map((row) => after.axes.rows[row]!) },
    rowSpans: rows.map((row) => after.rowSpans[row]!),
    title: "Difference",
  };
}
