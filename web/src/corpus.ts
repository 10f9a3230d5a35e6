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

/** Compare a prediction with its reference: its words, or its characters if it is one word (longest common subsequence). */
export function markDifferences(prediction: string, reference: string): Part[] {
  const pattern = /\s/u.test(prediction) ? /\s+|\S+/gu : /./gsu;
  const [left, right] = [prediction.match(pattern) ?? [], reference.match(pattern) ?? []];
  /** The length of the longest common subsequence of what begins at two indices. */
  const common = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let row = left.length - 1; row >= 0; row--)
    for (let column = right.length - 1; column >= 0; column--)
      common[row]![column] = left[row] === right[column] ? common[row + 1]![column + 1]! + 1 : Math.max(common[row + 1]![column]!, common[row]![column + 1]!);
  const parts: Part[] = [];
  const add = (text: string, isDifferent: boolean): void => {
    const last = parts.at(-1);
    if (last?.isDifferent === isDifferent) last.text += text;
    else parts.push({ text, isDifferent });
  };
  for (let row = 0, column = 0; row < left.length || column < right.length; ) {
    const isEqual = row < left.length && left[row] === right[column];
    const isMissing = !isEqual && column < right.length && (row === left.length || common[row]![column + 1]! >= common[row + 1]![column]!);
    add(isMissing ? "" : left[row]!, !isEqual);
    if (!isMissing) row += 1;
    if (isEqual || isMissing) column += 1;
  }
  return parts;
}
