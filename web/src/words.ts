/** Words: group the tokens of a text into the words that they are parts of, as regard.inspection.views.labels does. */
import { Matrix } from "./arrays.js";

/** The index of the first token of a word, and the index after its last token. */
export type Span = [number, number];

/** Return the tokens of a word. */
export const listTokens = ([start, end]: Span): number[] => Array.from({ length: end - start }, (_, index) => start + index);

const MARK = "▁";
export const isSpace = (token: string): boolean => /^\s+$/u.test(token);
const isSpecial = (token: string): boolean => /^<.+>$/u.test(token);
/** Whether a token is more than white space, punctuation or a special token. */
export const isContent = (token: string): boolean => /[\p{L}\p{N}]/u.test(token) && !isSpecial(token);

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

/** A word of a text. Offsets count characters, as Python does. */
export interface SourceWord {
  text: string;
  start: number;
  end: number;
}

/** Return the words of a text: what is between white space. */
export function listSourceWords(text: string): SourceWord[] {
  return [...text.matchAll(/\S+/gu)].map(({ 0: word, index }) => {
    const start = [...text.slice(0, index)].length;
    return { text: word, start, end: start + [...word].length };
  });
}

/**
 * Return the words as they are written in a text: spans of tokens without white space between them. A token of white space
 * is a span of its own.
 */
export function findWritten(tokens: readonly string[], text: string): Span[] {
  const isMarked = tokens.some((token) => token.startsWith(MARK));
  const lower = text.toLowerCase();
  let end = 0;
  const starts = tokens.flatMap((token, index) => {
    const piece = token.replace(MARK, "").toLowerCase();
    const found = lower.indexOf(piece, end);
    const gap = found < 0 ? null : lower.slice(end, found);
    const isNext = gap !== null && /^\s*$/.test(gap);
    if (isNext) end = found + piece.length;
    // A token that is not part of the text is a word, such as a mark of the end. Unknown parts of a subword do not start a word.
    const isSeparate = isMarked ? token.startsWith(MARK) : isNext ? gap !== "" : piece.length > 1;
    const isStart = index === 0 || isSeparate || isSpace(token) || isSpace(tokens[index - 1]!) || isSpecial(token);
    return isStart ? [index] : [];
  });
  return starts.map((start, index) => [start, starts[index + 1] ?? tokens.length]);
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
