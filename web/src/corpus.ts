/** The corpus: its pairs with the predictions of each model, which of them are listed, and in which order. */
import type { Corpus, CorpusRow } from "./client.js";

export const COLUMNS = ["confidence", "length", "entropy", "coverage"] as const;
export type Column = (typeof COLUMNS)[number];

/** What the listed pairs have: an error of the present model, predictions that differ, or source text without a token. */
export const TRAITS = ["error", "disagreement", "unknown"] as const;
export type Trait = (typeof TRAITS)[number];

export interface Filter {
  only: readonly Trait[];
  /** The length of the source in tokens; null for no limit. */
  shortest: number | null;
  longest: number | null;
}

/** A pair with the prediction of the present model, and those of all models that are compared. */
export interface Case {
  row: CorpusRow;
  /** undefined for a model that has not predicted it yet. */
  predictions: (CorpusRow | undefined)[];
}

/** Return the first `count` pairs. */
export function listCases(present: Corpus, compared: readonly Corpus[], count: number): Case[] {
  return present.rows.slice(0, count).map((row) => ({ row, predictions: compared.map(({ rows }) => rows[row.index]) }));
}

export function hasTrait({ row, predictions }: Case, trait: Trait): boolean {
  switch (trait) {
    case "error":
      return !row.correct;
    case "disagreement":
      return predictions.some((each) => each !== undefined && each.prediction !== row.prediction);
    case "unknown":
      return row.unknown.length > 0;
  }
}

/**
 * Whether the source of a pair is selected. Metrics are computed on these pairs: those of pairs that are selected by
 * their predictions would say nothing about the models.
 */
export function selectsSource(filter: Filter, each: Case): boolean {
  const { length } = each.row;
  const isKnown = !filter.only.includes("unknown") || hasTrait(each, "unknown");
  return isKnown && length >= (filter.shortest ?? 0) && length <= (filter.longest ?? Infinity);
}

export function selects(filter: Filter, each: Case): boolean {
  return selectsSource(filter, each) && filter.only.every((trait) => hasTrait(each, trait));
}

/** Sort by a column ("-" for descending), or by the number of the pair for an empty text. Pairs without a value are last. */
export function sortCases(cases: readonly Case[], sort: string): Case[] {
  if (!sort) return [...cases];
  const sign = sort.startsWith("-") ? -1 : 1;
  const column = sort.replace("-", "") as Column;
  const value = ({ row }: Case): number => (row[column] === null ? Infinity : sign * row[column]);
  return [...cases].sort((left, right) => value(left) - value(right) || left.row.index - right.row.index);
}

/** A part of a prediction, and whether it differs from the reference. The text is empty where something is missing. */
export interface Part {
  text: string;
  isDifferent: boolean;
}

/** Compare a prediction with its reference by its words, or by its characters if it is one word (fewest edits). */
export function markDifferences(prediction: string, reference: string): Part[] {
  const pattern = /\s/u.test(prediction) ? /\s+|\S+/gu : /./gsu;
  const [left, right] = [prediction.match(pattern) ?? [], reference.match(pattern) ?? []];
  const change = (row: number, column: number): number => Number(left[row] !== right[column]);
  /** How many edits turn what begins at two indices into each other. */
  const edits = Array.from({ length: left.length + 1 }, (_, row) => Uint16Array.from({ length: right.length + 1 }, (__, column) => left.length - row + right.length - column));
  const count = (row: number, column: number): number => edits[row]![column]!;
  for (let row = left.length - 1; row >= 0; row--)
    for (let column = right.length - 1; column >= 0; column--)
      edits[row]![column] = Math.min(count(row + 1, column + 1) + change(row, column), count(row + 1, column) + 1, count(row, column + 1) + 1);
  const parts: Part[] = [];
  const add = (text: string, isDifferent: boolean): void => {
    const last = parts.at(-1);
    if (last?.isDifferent === isDifferent) last.text += text;
    else parts.push({ text, isDifferent });
  };
  for (let row = 0, column = 0; row < left.length || column < right.length; ) {
    const [hasLeft, hasRight] = [row < left.length, column < right.length];
    const isPair = hasLeft && hasRight && count(row, column) === count(row + 1, column + 1) + change(row, column);
    const isMissing = !isPair && hasRight && (!hasLeft || count(row, column) === count(row, column + 1) + 1);
    add(isMissing ? "" : left[row]!, !isPair || left[row] !== right[column]);
    if (!isMissing) row += 1;
    if (isPair || isMissing) column += 1;
  }
  return parts;
}
