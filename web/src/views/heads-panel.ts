/** The effect of each head on the prediction, and on other examples: its output is set to zero, one head at a time. */
import { css, html, type TemplateResult } from "lit";
import { customElement } from "lit/decorators.js";
import { at } from "../arrays.js";
import type { HeadSummary } from "../heads.js";
import { shared } from "../styles.js";
import { formatNumber } from "../trace.js";
import { View } from "./base.js";
import { chooseRole, renderProgress } from "./controls.js";

/** Up to this number, heads without an effect are named in a sentence. */
const FEW = 4;

@customElement("heads-panel")
export class HeadsPanel extends View {
  static override styles = [
    shared,
    css`
      table { margin-top: var(--space-2); }
      th, td { padding-inline: 0 var(--space-3); }
      .number { text-align: end; white-space: nowrap; width: 5em; }
      .effect { width: 25%; }
      @media (max-width: 700px) { .effect { display: none; } }
      .effect i { display: block; height: 8px; border-radius: 3px; background: var(--accent); }
      td button { min-height: 0; padding: 0; border: 0; background: none; text-align: start; text-decoration: underline; text-underline-offset: 3px; text-decoration-color: var(--line-strong); }
      tr[aria-current="true"] button { font-weight: 650; color: var(--accent); }
      bdi { overflow-wrap: anywhere; }
      .row p { flex: 1; min-width: 15em; }
    `,
  ];

  protected override willUpdate(): void {
    const { store } = this;
    if (!store.isCurrent || !store.client.isLive) return;
    const next = store.describeHeads().find((request) => !store.results.has(JSON.stringify(request)));
    if (next) this.computeResult("heads", next);
    else this.stop();
  }

  protected override render(): TemplateResult {
    const { store } = this;
    const requests = store.describeHeads();
    const done = requests.filter((request) => store.results.has(JSON.stringify(request))).length;
    const { effects } = store;
    const isRunning = done < requests.length && store.client.isLive && !this.failure;
    return html`<div class="stack">
      ${store.state.ablations ? "" : this.renderOffer()}
      ${this.renderFailure()}
      ${isRunning ? renderProgress("Ablating heads", (done + this.progress) / requests.length) : effects ? this.renderSummary(effects, done) : ""}
      <slot></slot>
      ${effects ? this.renderTable(effects, done) : ""}
    </div>`;
  }

  /** Choose a head, and show it in the grid. */
  private choose({ role, layer, head }: HeadSummary): void {
    chooseRole(this.store, role, { layer, head });
    requestAnimationFrame(() => this.firstElementChild!.scrollIntoView({ block: "nearest" }));
  }

  private renderOffer(): TemplateResult | string {
    if (!this.store.client.isLive) return "";
    return html`<div class="row">
      <button type="button" class="primary" id="ablate-each" @click=${() => this.store.show({ ablations: 1 })}>Ablate each head</button>
      <span class="muted small">The output of each head is set to zero, one at a time.</span>
    </div>`;
  }

  private renderSummary(effects: readonly HeadSummary[], examples: number): TemplateResult {
    const { store } = this;
    const others = store.otherExamples.length;
    const { where } = at(effects, 0);
    const used = effects.filter((each) => !each.isOff);
    const idle = used.filter((each) => each.isIdle);
    const drawn = effects.filter((each) => each.role === store.state.role).length;
    const named = idle.length > FEW ? ": those at the end of the table" : `: ${idle.map(({ name }) => name).join("; ")}`;
    const count = used.length > 1 ? `All ${used.length} heads have` : "The only head has";
    return html`<div class="row">
      <p id="idle"><b>${idle.length ? `${idle.length} of ${used.length} heads ${idle.length > 1 ? "have" : "has"} no effect on ${where}${named}.` : `${count} an effect on ${where}.`}</b>
        ${examples > 1 ? "" : "One example is not proof."} ${idle.length ? "Other sources may need them, and heads can replace each other." : ""} ${drawn < effects.length ? `The grid shows ${drawn} of the ${effects.length} heads.` : ""}</p>
      ${store.state.ablations === 1 && others && store.client.isLive
        ? html`<button type="button" id="more-examples" @click=${() => store.show({ ablations: 2 })}>Ablate on ${others} more ${others === 1 ? "example" : "examples"}</button>`
        : ""}
      <button type="button" class="quiet" @click=${() => store.show({ ablations: 0 })}>Close</button>
    </div>`;
  }

  private renderTable(effects: readonly HeadSummary[], examples: number): TemplateResult {
    const largest = Math.max(...effects.map(({ size }) => size)) || 1;
    return html`<table>
      <caption class="muted small">Change of the log-probability of the output without the head${examples > 1 ? `, averaged over ${examples} examples, sorted by average absolute change` : ""}. “No effect”: ${examples > 1 ? "on every example, " : ""}the output stays the same, and its probability changes by less than 1 %.</caption>
      <thead><tr><th>Head</th><th class="number">Change</th><td class="effect"></td><th>Output without it</th></tr></thead>
      <tbody>${effects.map((effect) => this.renderEffect(effect, examples, largest))}</tbody>
    </table>`;
  }

  private renderEffect(effect: HeadSummary, examples: number, largest: number): TemplateResult {
    const { store } = this;
    const { role, layer, head, change, size, changed, isIdle, isOff, name, text } = effect;
    const isChosen = role === store.state.role && layer === store.layer && head === store.state.head;
    const outcome = isOff ? "ablated" : isIdle ? "no effect" : !changed ? "same output" : examples > 1 ? `other output for ${changed} of ${examples}` : html`<bdi>${text || "(empty)"}</bdi>`;
    return html`<tr aria-current=${isChosen}>
      <td><button type="button" @click=${() => this.choose(effect)}>${name}</button></td>
      <td class="number">${formatNumber(change)}</td>
      <td class="effect"><i .style=${`width:${isIdle ? 0 : (100 * size) / largest}%`}></i></td>
      <td class=${changed ? "" : "muted"}>${outcome}</td>
    </tr>`;
  }
}
