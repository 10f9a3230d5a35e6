/** The tab Model: what it is, its settings and its learning curves. */
import { css, html, svg, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import type { ModelCard, ModelSummary, Series } from "../client.js";
import type { Figure } from "../figures.js";
import { formatTick, ModelFigure, nameCurves, scaleCurve } from "../report.js";
import { shared } from "../styles.js";
import { ROLE_NAMES } from "../trace.js";
import { View } from "./base.js";

@customElement("model-view")
export class ModelView extends View {
  static override styles = [
    shared,
    css`
      .body { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); gap: var(--space-3); align-items: start; }
      dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px var(--space-3); margin: 0; }
      .warnings { border-inline-start: 3px solid var(--bad); padding-inline-start: var(--space-2); display: grid; gap: var(--space-1); }
      .equation { white-space: nowrap; }
      dt { color: var(--muted); }
      dd { margin: 0; }
      pre { margin: 0; max-height: 420px; overflow: auto; font-size: var(--size-1); line-height: 1.45; background: var(--page); padding: var(--space-2); border-radius: 8px; }
      svg { width: 100%; height: auto; }
      svg path { fill: none; stroke: var(--accent); stroke-width: 2; vector-effect: non-scaling-stroke; }
      svg text { font-size: 11px; fill: var(--muted); }
      svg line { stroke: var(--line); }
    `,
  ];

  @state() private cards: Record<string, ModelCard> = {};

  private get card(): ModelCard | undefined {
    return this.cards[this.store.state.model];
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const { model } = this.store;
    if (!model || !this.card) return null;
    const facts = [...this.listFacts(model)].map(([name, value]) => `${name}: ${value}`);
    const attentions = model.attentions.map((each) => `${nameAttention(each)}: ${each.equation}`);
    return new ModelFigure(model.name, [model.architecture, facts.join(", "), ...new Set(attentions)], nameCurves(this.card.curves ?? []), fontSize);
  }

  private listFacts(model: ModelSummary): [name: string, value: string][] {
    return [
      ["Parameters", model.parameters?.toLocaleString("en") ?? "–"],
      ["Training steps", model.step?.toLocaleString("en") ?? "–"],
      ...Object.entries(model.metrics ?? {}).map(([name, value]): [string, string] => [`${name}, dev set`, String(Number(value.toPrecision(4)))]),
    ];
  }

  override get data(): unknown {
    return { ...this.store.model, card: this.card };
  }

  protected override willUpdate(): void {
    const { model } = this.store.state;
    this.load(model, () => this.store.client.card(model), (card) => (this.cards = { ...this.cards, [model]: card }));
  }

  protected override render(): TemplateResult {
    const { model } = this.store;
    if (!model) return html``;
    return html`<div class="body">
      <section class="panel stack" aria-label="Model">
        <h2>${model.name}</h2>
        <p>${model.architecture}</p>
        <dl>
          ${this.listFacts(model).map(([name, value]) => html`<dt>${name}</dt><dd class="number">${value}</dd>`)}
        </dl>
        ${this.card?.warnings?.length ? html`<div class="warnings" role="note"><h3>Warnings of training</h3>${this.card.warnings.map((text) => html`<p class="small">${text}</p>`)}</div>` : ""}
        <h3>Attention</h3>
        <div class="scroll"><table>
          <thead><tr><th>Role</th><th>Layer</th><th>Heads</th><th>Equation</th></tr></thead>
          <tbody>${model.attentions.map((each) => html`<tr><td>${nameAttention(each)}</td><td class="number">${(each.layer ?? 0) + 1}</td><td class="number">${each.heads}</td><td class="equation">${each.equation}</td></tr>`)}</tbody>
        </table></div>
      </section>
      ${this.renderFailure()}
      ${this.card ? this.renderCard(this.card) : ""}
    </div>`;
  }

  private renderCard(card: ModelCard): TemplateResult {
    return html`
      ${card.curves?.length ? html`<section class="panel stack" aria-label="Learning curves"><h2>Learning curves</h2>${nameCurves(card.curves).map((series) => renderCurve(series))}</section>` : ""}
      <section class="panel stack" aria-label="Settings"><h2>Settings</h2><pre tabindex="0" role="group" aria-label="Settings as YAML">${card.settings}</pre></section>
    `;
  }
}

const nameAttention = (attention: ModelSummary["attentions"][number]): string =>
  attention.role ? ROLE_NAMES[attention.role] : attention.name;

function renderCurve(series: Series): TemplateResult {
  const curve = scaleCurve(series, 390, 100);
  if (!curve) return html``;
  const path = curve.points.map(([x, y], index) => `${index ? "L" : "M"}${(50 + x).toFixed(1)} ${(18 + y).toFixed(1)}`).join("");
  const label = `${series.name}: between ${formatTick(curve.low)} and ${formatTick(curve.high)}`;
  return html`<figure .style=${"margin:0"}>
    <figcaption class="small muted">${series.name}</figcaption>
    <svg viewBox="0 0 450 140" role="img" aria-label=${label}>
      <line x1="50" x2="440" y1="118" y2="118"></line>
      ${svg`<path d=${path}></path><text x="44" y="22" text-anchor="end">${formatTick(curve.high)}</text><text x="44" y="120" text-anchor="end">${formatTick(curve.low)}</text><text x="50" y="134">${curve.firstStep}</text><text x="440" y="134" text-anchor="end">step ${curve.lastStep}</text>`}
    </svg>
  </figure>`;
}
