/** The effect of each head: what changes in predictions if its output is set to zero. */
import { at, average } from "./arrays.js";
import { isAblated } from "./edits.js";
import { ROLE_NAMES, type Edit, type Role } from "./trace.js";

export interface HeadEffect {
  attention: string;
  role: Role;
  layer: number;
  head: number;
  /** The log-probability of the output without the head, minus that with it. */
  change: number;
  /** The output without the head. */
  text: string;
}

/** The effects of all heads on a prediction. */
export interface HeadEffects {
  text: string;
  score: number;
  heads: HeadEffect[];
}

/** The effect of a head on several predictions: `change` is the average, and `text` is the first output. */
export interface HeadSummary extends HeadEffect {
  name: string;
  /** The average size of the changes: changes of opposite signs do not cancel. */
  size: number;
  /** How many outputs are other texts without the head. */
  changed: number;
  /** Whether on no example the output changes, nor its probability by 1 %. */
  isIdle: boolean;
  /** Whether an edit has ablated the head already. */
  isOff: boolean;
  /** On which predictions. */
  where: string;
}

const NEGLIGIBLE = 0.01;

/** Summarize the effects on one or several predictions of a model: the largest first, then heads without effect, then those that are off. */
export function summarizeEffects(results: readonly HeadEffects[], edits: readonly Edit[] = []): HeadSummary[] {
  const where = (results.length > 1 ? `these ${results.length} examples` : "this example") + (edits.length ? " with the edits above" : "");
  const find = (result: HeadEffects, { attention, head }: HeadEffect): HeadEffect => result.heads.find((each) => each.attention === attention && each.head === head)!;
  const { heads } = at(results, 0);
  const hasSeveral = (key: "layer" | "head", effect: HeadEffect): boolean => heads.some((each) => each.role === effect.role && each[key] !== effect[key]);
  const summaries = heads.map((effect): HeadSummary => {
    const all = results.map((result) => find(result, effect));
    const changed = all.filter(({ text }, index) => text !== at(results, index).text).length;
    const isOff = isAblated(edits, effect.attention, effect.head);
    const changes = all.map(({ change }) => change);
    const sizes = changes.map(Math.abs);
    const isIdle = !isOff && !changed && Math.max(...sizes) < NEGLIGIBLE;
    const numbers = (["layer", "head"] as const).filter((key) => hasSeveral(key, effect)).map((key) => `, ${key} ${effect[key] + 1}`);
    return { ...effect, change: average(changes), size: average(sizes), changed, isIdle, isOff, where, name: ROLE_NAMES[effect.role] + numbers.join("") };
  });
  const rank = ({ isIdle, isOff }: HeadSummary): number => (isOff ? 2 : Number(isIdle));
  return summaries.sort((left, right) => rank(left) - rank(right) || right.size - left.size);
}
