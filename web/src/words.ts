/** Words: group the tokens of a text into the words that they are parts of, as regard.inspection.views.labels does. */
import { Matrix } from "./arrays.js";

/** The index of the first token of a word, and the index after its last token. */
export type Span = [number, number];

/** Return the tokens of a word. */
export const listTokens = ([start, end]: Span): number[] => Array.from({ length: end - start }, (_, index) => start + index);

const MARK = "▁";
const isSpace = (token: string): boolean => /^\s+$/u.test(token);

/** Return the tokens of each word, as spans that cover all tokens. */
export function findWords(tokens: readonly string[]): Span[] {
  const last = tokens.findLastIndex((token) => !isSpace(token));
  const starts = tokens.flatMap((token, index) => {
    // The first of several spaces starts the word. Spaces at the end belong to the last word.
    const isFirstSpace = index < last && isSpace(token) && !isSpace(tokens[index - 1] ?? "");
    return isFirstSpace || token.startsWith(MARK) ? [index] : [];
  });
  const edges = starts.length ? new Set([0, ...starts]) : new Set(tokens.keys());
  const sorted = [...edges].sort((left, right) => left - right);
  return sorted.map((start, index) => [start, sorted[index + 1] ?? tokens.length]);
}

/** Return the text of a word, without the mark or the space before it. */
export function joinWord(tokens: readonly string[]): string {
  const text = tokens.join("");
  const stripped = (text.startsWith(MARK) ? text.slice(1) : text).trim();
  return stripped || text;
}

/** Average the rows of each word, and sum the columns of each word. */
export function combineWords(weights: Matrix, rows: readonly Span[], columns: readonly Span[]): Matrix {
  const result = new Matrix(rows.length, columns.length);
  rows.forEach(([top, bottom], row) => {
    columns.forEach(([left, right], column) => {
      let sum = 0;
      for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) sum += weights.at(i, j);
      result.data[row * columns.length + column] = sum / (bottom - top);
    });
  });
  return result;
}
