/** What the edits changed: the text, its score and the attention weights. */
import { css, html, type PropertyValues, type TemplateResult } from "lit";
import { customElement } from "lit/decorators.js";
import { compareLists } from "../edits.js";
import { shared } from "../styles.js";
import { findLayers, formatChange, formatPercent, labelToken, ROLE_NAMES, type TraceDocument } from "../trace.js";
import { StoreElement } from "./base.js";

/** The row whose weights changed most. */
interface LargestChange {
  attention: string;
  step: number;
  variation: number;
}

function findLargest(variation: Record<string, number[]>): LargestChange | null {
  const rows = Object.entries(variation).flatMap(([attention, values]) =>
    values.map((value, step): LargestChange => ({ attention, step, variation: value })),
  );
  return rows.reduce<LargestChange | null>((best, row) => (row.variation > (best?.variation ?? 0) ? row : best), null);
}

/** Two texts, with the words that differ marked; in texts without spaces, the characters. */
function renderDifference(before: string, after: string): TemplateResult {
  const split = (text: string): string[] => (/\s/u.test(before + after) ? text.split(/(\s+)/u).filter(Boolean) : [...text]);
  const [left, right] = [split(before), split(after)];
  const [missing, added] = compareLists(left, right);
  const mark = (parts: readonly string[], differs: readonly boolean[], tag: (part: string) => TemplateResult): TemplateResult =>
    html`<bdi>${parts.length ? parts.map((part, index) => (differs[index] ? tag(part) : part)) : "(empty)"}</bdi>`;
  return html`<span class="muted">${mark(left, missing, (part) => html`<del>${part}</del>`)} →</span> <b>${mark(right, added, (part) => html`<ins>${part}</ins>`)}</b>`;
}

@customElement("changes-panel")
export class ChangesPanel extends StoreElement {
  static override styles = [
    shared,
    css`
      /* The edits above it are seen with it. */
      :host { scroll-margin: 140px 0 var(--space-3); }
      .panel { padding: var(--space-2) var(--space-3); margin-bottom: var(--space-3); border-inline-start: 4px solid var(--edit); }
      del, ins { text-decoration: none; border-radius: 3px; background: color-mix(in srgb, var(--edit) 22%, transparent); }
      p { max-width: none; flex: 1; min-width: 20em; }
    `,
  ];

  private shown: TraceDocument | null = null;

  /** Show what an edit has changed, wherever its control is. */
  protected override updated(_changed: PropertyValues): void {
    const { trace } = this.store;
    if (trace === this.shown) return;
    this.shown = trace;
    this.scrollIntoView({ block: "nearest" });
  }

  protected override render(): TemplateResult {
    const { trace } = this.store;
    if (!trace?.changes) return html``;
    const { text, score, first_step: first } = trace.changes;
    const after = trace.hypotheses[0];
    return html`<section class="panel row" aria-label="What changed" id="changes">
      <p>
        ${first === null
          ? html`The edits do not change the output.`
          : html`${renderDifference(text, after?.text ?? "")}, different from step ${first + 1} on.`}
        <span class="number">${formatChange(score, after?.score ?? null)}</span>
        <span class="number">${this.describeWeights(trace)}</span>
      </p>
      <button type="button" ?disabled=${!this.store.canTrace({ edits: [] })} @click=${() => this.store.show({ tab: "compare", other: "original" })}>Compare</button>
      <button type="button" id="remove-edits" ?disabled=${!this.store.canTrace({ edits: [] })} @click=${() => void this.store.changeEdits([], "edits")}>Remove all edits</button>
    </section>`;
  }

  private describeWeights(trace: TraceDocument): string {
    const variation = trace.changes!.variation ?? {};
    if (!Object.keys(variation).length) return "The source has another length, so its weights cannot be compared.";
    const largest = findLargest(variation);
    if (!largest) return "No attention weight changes.";
    const mechanism = trace.mechanisms[largest.attention];
    const name = mechanism ? `${ROLE_NAMES[mechanism.role].toLowerCase()}${findLayers(trace, mechanism.role, 0).length > 1 ? `, layer ${mechanism.layer + 1}` : ""}` : largest.attention;
    const isSource = mechanism?.role === "encoder-self";
    const token = (isSource ? trace.source.tokens : trace.hypotheses[0]?.tokens)?.[largest.step];
    const place = `${isSource ? "source position" : "output step"} ${largest.step + 1}${token === undefined ? "" : ` (“${labelToken(token)}”)`}`;
    return `The attention changes most at ${place}: ${formatPercent(largest.variation)} of its weight moves to other positions (${name}).`;
  }
}
