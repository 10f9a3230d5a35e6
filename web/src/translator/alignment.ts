/** Aligned words: their places in the source and in the translation, and the attention weights between them. */
import { at } from "../arrays.js";
import type { Span } from "../words.js";
import type { Attention, Sentence } from "./client.js";

/** A translation with the words of both sides, numbered over all sentences, as spans of code units. */
export interface AlignedText {
  source: string;
  text: string;
  sourceWords: Span[];
  words: Span[];
  /** For each word of the source, the words of the translation that it is aligned with. */
  toWords: number[][];
  /** For each word of the translation, the words of the source that it is aligned with. */
  toSource: number[][];
  sentences: PlacedSentence[];
}

/** A sentence, and the numbers of its first words. */
export interface PlacedSentence {
  source: string;
  firstSourceWord: number;
  firstWord: number;
}

/** A part of a text: a word with its number, or what is between words. */
export interface Segment {
  text: string;
  word: number | null;
}

/** Weights of the words of a source, and of the tokens that belong to none, such as the end of the sentence. */
export interface WordWeights {
  words: number[];
  rest: number;
}

/** Find the words of each sentence in the complete texts. */
export function alignText(source: string, text: string, sentences: readonly Sentence[]): AlignedText {
  const aligned: AlignedText = { source, text, sourceWords: [], words: [], toWords: [], toSource: [], sentences: [] };
  let end = 0;
  for (const sentence of sentences) {
    const start = text.indexOf(sentence.text, end);
    if (start < 0) continue; // the sentence was changed when the texts were joined
    end = start + sentence.text.length;
    const [firstSourceWord, firstWord] = [aligned.sourceWords.length, aligned.words.length];
    aligned.sentences.push({ source: sentence.source, firstSourceWord, firstWord });
    aligned.sourceWords.push(...toCodeUnits(sentence.source, sentence.source_words, toCodeUnit(source, sentence.start)));
    aligned.words.push(...toCodeUnits(sentence.text, sentence.words, start));
    aligned.toWords.push(...sentence.source_words.map((): number[] => []));
    aligned.toSource.push(...sentence.words.map((): number[] => []));
    for (const [left, right] of sentence.links) {
      at(aligned.toWords, firstSourceWord + left).push(firstWord + right);
      at(aligned.toSource, firstWord + right).push(firstSourceWord + left);
    }
  }
  return aligned;
}

/** Return the index of a character in code units. The server counts characters. */
export function toCodeUnit(text: string, character: number): number {
  let index = 0;
  for (let count = 0; count < character && index < text.length; count++) index += text.codePointAt(index)! > 0xffff ? 2 : 1;
  return index;
}

function toCodeUnits(text: string, spans: readonly Span[], offset: number): Span[] {
  return spans.map(([start, end]) => [offset + toCodeUnit(text, start), offset + toCodeUnit(text, end)]);
}

/** Return the words of a text, and the parts between them, in order. */
export function splitAtWords(text: string, words: readonly Span[]): Segment[] {
  const segments: Segment[] = [];
  let position = 0;
  words.forEach(([start, end], word) => {
    if (start > position) segments.push({ text: text.slice(position, start), word: null });
    segments.push({ text: text.slice(start, end), word });
    position = end;
  });
  if (position < text.length) segments.push({ text: text.slice(position), word: null });
  return segments;
}

/** Return the word that contains or touches a position; −1 if there is none. */
export function findWord(words: readonly Span[], position: number): number {
  return words.findIndex(([start, end]) => start <= position && position <= end);
}

/**
 * Return the weights of the words of a source for a word of its translation: those of the source tokens of each word,
 * added, and averaged over the tokens of the word of the translation. Null if no token belongs to this word.
 */
export function weighWords(attention: Attention, sentence: Sentence, word: number): WordWeights | null {
  const columns = assignTokens(attention.source_tokens, sentence.source, sentence.source_words);
  const owners = assignTokens(attention.tokens, sentence.text, sentence.words);
  const rows = attention.weights.filter((_, row) => owners[row] === word);
  if (!rows.length) return null;
  const result: WordWeights = { words: sentence.source_words.map(() => 0), rest: 0 };
  for (const row of rows)
    row.forEach((weight, column) => {
      const owner = columns[column] ?? null;
      if (owner === null) result.rest += weight / rows.length;
      else result.words[owner] = at(result.words, owner) + weight / rows.length;
    });
  return result;
}

/**
 * Return the word that each token is a part of; null for a token that is not in the text. A space belongs to the word
 * after it, as the mark ▁ does.
 */
export function assignTokens(tokens: readonly string[], text: string, words: readonly Span[]): (number | null)[] {
  const lower = text.toLowerCase();
  const spans = toCodeUnits(text, words, 0);
  const owners: (number | null)[] = [];
  let position = 0;
  let spaces = 0;
  for (const token of tokens) {
    const piece = token.replaceAll("▁", " ").trim();
    if (!piece) {
      spaces += 1;
      continue;
    }
    let start = text.indexOf(piece, position);
    if (start < 0) start = lower.indexOf(piece.toLowerCase(), position);
    const owner = start < 0 ? -1 : spans.findIndex((span) => span[0] <= start && start < span[1]);
    if (start >= 0) position = start + piece.length;
    for (; spaces >= 0; spaces--) owners.push(owner < 0 ? null : owner);
    spaces = 0;
  }
  for (; spaces > 0; spaces--) owners.push(null);
  return owners;
}
