/** Controls that several views share. */
import { html, type TemplateResult } from "lit";
import { atMost } from "../arrays.js";
import { isAblated } from "../edits.js";
import type { State } from "../state.js";
import type { Store } from "../store.js";
import { hasRollout, type Head, type Layer, type MapChoice } from "../selection.js";
import { findLayers, findRoles, readHeads, ROLE_NAMES, type Role } from "../trace.js";

const parseChoice = (value: string): Layer => (/^\d+$/.test(value) ? Number(value) : (value as Layer));

const renderOption = (value: string | number, text: string, current: unknown): TemplateResult =>
  html`<option value=${value} ?selected=${value === current}>${text}</option>`;

/** Show another attention: by default, its last layer. */
export function chooseRole(store: Store, role: Role, changes: Partial<State> = { layer: null }): void {
  const { role: before } = store.state;
  // The rows of the encoder are source tokens, those of the decoder output tokens.
  const rows = role !== before && [role, before].includes("encoder-self") ? { rows: [], row: 0 } : {};
  store.show({ role, ...(role === before ? {} : { column: null }), ...rows, ...changes });
}

/** Selects of role, layer and head. Those with one choice are left out. */
export function renderMapControls(store: Store, single = false): TemplateResult {
  const { role } = store.state;
  const roles = findRoles(store.trace!);
  const changeRole = (event: Event): void => chooseRole(store, (event.target as HTMLSelectElement).value as Role);
  return html`
    ${roles.length > 1
      ? html`<label class="field">Attention
          <select id="role" @change=${changeRole}>${roles.map((each) => renderOption(each, ROLE_NAMES[each], role))}</select></label>`
      : ""}
    ${renderLayerAndHead(store, store.choose(), single)}
  `;
}

/** Selects of layer and head. */
export function renderLayerAndHead(store: Store, { role, hypothesis, layer, head }: MapChoice, single = false): TemplateResult {
  const trace = store.trace!;
  const layers = findLayers(trace, role, hypothesis);
  const heads = layers[0] ? readHeads(layers[0]).length : 0;
  const shown = typeof layer === "number" ? [atMost(layers, layer)] : layers;
  const isOff = (index: number): boolean => shown.every((entry) => isAblated(trace.edits, entry.name, index));
  const changeLayer = (event: Event): void => store.show({ layer: parseChoice((event.target as HTMLSelectElement).value) });
  const changeHead = (event: Event): void => store.show({ head: parseChoice((event.target as HTMLSelectElement).value) as Head });
  return html`
    ${layers.length > 1 || hasRollout(trace, role, hypothesis)
      ? html`<label class="field">Layer
          <select id="layer" @change=${changeLayer}>
            ${layers.map((_, index) => renderOption(index, String(index + 1), layer))}
            ${single || layers.length < 2 ? "" : [renderOption("mean", "Average", layer), renderOption("max", "Maximum", layer)]}
            ${!single && hasRollout(trace, role, hypothesis) ? renderOption("rollout", "Rollout", layer) : ""}
          </select></label>`
      : ""}
    ${heads > 1
      ? html`<label class="field">Head
          <select id="head" @change=${changeHead}>
            ${Array.from({ length: heads }, (_, index) => renderOption(index, `${index + 1}${isOff(index) ? " (off)" : ""}`, head))}
            ${single ? renderOption("mean", "All", head === "max" ? "mean" : head) : [renderOption("mean", "Average", head), renderOption("max", "Maximum", head)]}
          </select></label>`
      : ""}
  `;
}

/** Buttons of which one is pressed. */
export function renderSegments<T extends string>(
  name: string,
  choices: readonly (readonly [T, string])[],
  current: T,
  choose: (value: T) => void,
): TemplateResult {
  return html`<span class="segments" role="group" aria-label=${name}>
    ${choices.map(
      ([value, text]) => html`<button type="button" aria-pressed=${value === current} @click=${() => choose(value)}>${text}</button>`,
    )}
  </span>`;
}

/** Tokens or words. */
export function renderUnits(store: Store): TemplateResult {
  return renderSegments("Unit", [["token", "Tokens"], ["word", "Words"]], store.words ? "word" : "token", (value) => store.show({ words: value === "word" }));
}

/** What went wrong, and a button that tries again. */
export function renderFailure(message: string, retry: () => void): TemplateResult {
  return html`<div class="panel row failure" role="alert"><p>${message}</p><button type="button" class="retry" @click=${retry}>Retry</button></div>`;
}

/** Why the last edit of a control failed. */
export function renderRefusal(store: Store, control: string): TemplateResult | string {
  return store.refusal?.control === control ? html`<p class="refusal small" role="alert">${store.refusal.message}</p>` : "";
}

/** A progress bar with a share from 0 to 1. */
export function renderProgress(label: string, share: number): TemplateResult {
  return html`<div class="row"><progress max="1" .value=${share} aria-label=${label}></progress><span class="muted small number">${label}: ${Math.round(100 * share)} %</span></div>`;
}

/** Links to the hypotheses, if there are several. */
export function renderHypotheses(store: Store): TemplateResult | string {
  const { hypotheses } = store.trace!;
  if (hypotheses.length < 2) return "";
  return html`<label class="field">Hypothesis
    <select id="hypothesis" @change=${(event: Event) => store.show({ hypothesis: Number((event.target as HTMLSelectElement).value), rows: [] })}>
      ${hypotheses.map((each, index) => html`<option value=${index} ?selected=${index === store.state.hypothesis}>${index + 1}. ${each.text}</option>`)}
    </select></label>`;
}
