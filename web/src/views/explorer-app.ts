/** The page: header, source, tabs, and the view of the selected tab. */
import { css, html, type TemplateResult } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import { at } from "../arrays.js";
import { createClient } from "../client.js";
import { applyTheme, isDark, setTheme } from "../palette.js";
import { TAB_NAMES, TABS, type Tab } from "../state.js";
import { Store } from "../store.js";
import { shared } from "../styles.js";
import { StoreElement, type View } from "./base.js";
import "./attention-view.js";
import "./changes-panel.js";
import "./compare-view.js";
import { renderFailure } from "./controls.js";
import "./corpus-view.js";
import "./equation-view.js";
import "./export-dialog.js";
import "./gallery-view.js";
import type { ExportDialog } from "./export-dialog.js";
import "./guided-tour.js";
import "./image-view.js";
import "./model-view.js";
import "./neighbors-panel.js";
import "./source-bar.js";
import type { SourceBar } from "./source-bar.js";
import "./steps-view.js";
import "./tool-bar.js";
import "./translate-view.js";

const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["1, 2, 3 …", "open the first, second, third … tab"],
  ["/", "edit the source"],
  ["Esc", "leave a text field"],
  ["← → ↑ ↓", "move between controls, tokens, cells, steps and rows"],
  ["Home, End", "first, last"],
  ["Space", "select a row of the matrix, or a cell of the picture"],
  ["Enter", "run; open a head"],
  ["Ctrl+Z, Ctrl+Shift+Z", "undo, redo an edit"],
  ["T", "light or dark"],
  ["?", "this list"],
];

const FOCUSABLE = "button:not(:disabled), select:not(:disabled), input:not(:disabled), [tabindex='0']";

@customElement("explorer-app")
export class ExplorerApp extends StoreElement {
  static override styles = [
    shared,
    css`
      :host { max-width: 1680px; margin: 0 auto; padding: var(--space-2) var(--space-4) var(--space-5); }
      header { display: flex; align-items: center; gap: var(--space-3); min-height: 52px; flex-wrap: wrap; }
      h1 { font-size: var(--size-3); font-weight: 700; letter-spacing: -0.02em; margin: 0; display: flex; gap: 8px; align-items: center; }
      h1 svg { width: 24px; height: 24px; color: var(--accent); }
      header tool-bar { display: contents; }
      .actions { margin-inline-start: auto; display: flex; gap: 4px; align-items: center; }
      .skip { position: fixed; inset: var(--space-2) auto auto var(--space-2); z-index: 7; }
      .skip:not(:focus) { clip-path: inset(50%); }
      .tabs { display: flex; gap: 2px; border-bottom: 1px solid var(--line-strong); margin: var(--space-3) 0; overflow-x: auto; }
      .tabs button { border: 0; background: none; border-radius: 8px 8px 0 0; padding: 8px 16px; color: var(--muted); border-bottom: 3px solid transparent; font-weight: 550; white-space: nowrap; }
      .tabs button[aria-selected="true"] { color: var(--ink); border-bottom-color: var(--accent); }
      @media (max-width: 700px) { header { padding-bottom: var(--space-2); } .tabs { flex-wrap: wrap; } .tabs button { padding: 6px 12px; } }
      .tabs :focus-visible { outline-offset: -3px; }
      .failure { margin-bottom: var(--space-3); }
      main { min-height: 300px; transition: opacity 120ms; }
      main:focus { outline: none; }
      main.loading { opacity: 0.55; }
      .progress { height: 3px; margin-top: calc(-1 * var(--space-3)); margin-bottom: calc(var(--space-3) - 3px); overflow: hidden; }
      .progress i { display: block; width: 30%; height: 100%; background: var(--accent); animation: slide 1s infinite ease-in-out alternate; }
      @keyframes slide { from { margin-left: 0; } to { margin-left: 70%; } }
      @media (prefers-reduced-motion: reduce) { .progress i { animation: none; width: 100%; } main { transition: none; } }
      .about { display: grid; gap: var(--space-1); padding-block: var(--space-2) var(--space-3); }
      .about p { white-space: pre-line; }
      dialog { border: 1px solid var(--line-strong); border-radius: var(--radius); background: var(--panel); color: var(--ink); padding: var(--space-4); max-width: 560px; width: 90vw; }
      dialog::backdrop { background: rgb(0 0 0 / 0.4); }
      dialog dl { display: grid; grid-template-columns: max-content 1fr; gap: 8px var(--space-4); margin: var(--space-3) 0; }
      dd { margin: 0; }
      kbd { font: inherit; font-weight: 600; }
      .toast { position: fixed; inset-block-end: var(--space-4); inset-inline-start: 50%; translate: -50%; background: var(--ink); color: var(--page); padding: 8px 18px; border-radius: 999px; z-index: 6; }
      .empty { padding: var(--space-5); text-align: center; display: grid; justify-items: center; gap: var(--space-3); }
    `,
  ];

  @state() private isTourOpen = false;
  @state() private toast = "";
  @query("main") private main!: HTMLElement;
  @query("dialog") private help!: HTMLDialogElement;
  @query("source-bar") private sourceBar!: SourceBar;
  @query("export-dialog") private exportDialog!: ExportDialog;

  constructor() {
    super();
    this.store = new Store(createClient());
    const { theme, title } = this.store.client.saved ?? {};
    if (title) document.title = title;
    if (theme) {
      setTheme(theme);
      return;
    }
    applyTheme();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      applyTheme();
      this.store.notify();
    });
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.store.addEventListener("announce", () => this.requestUpdate());
    addEventListener("keydown", (event) => this.press(event));
    void this.start();
  }

  private async start(): Promise<void> {
    await this.store.start(location.hash.length > 1 ? location.hash : (this.store.client.saved?.fragment ?? ""));
  }

  private get tabs(): Tab[] {
    const { client, readsImages } = this.store;
    const optional: Partial<Record<Tab, boolean>> = {
      gallery: Boolean(client.saved?.gallery),
      corpus: client.isLive || client.corpora.size > 0,
      image: readsImages,
    };
    return TABS.filter((tab) => optional[tab] ?? true);
  }

  private get tab(): Tab {
    return this.tabs.includes(this.store.state.tab) ? this.store.state.tab : "translate";
  }

  private get view(): View {
    return this.shadowRoot!.querySelector<View>("main > :not(p)")!;
  }

  protected override render(): TemplateResult {
    const { store } = this;
    return html`
      <button type="button" class="skip" @click=${() => this.main.focus()}>Skip to the view</button>
      <header>
        <h1>
          <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true"><path d="M2 12s3.6-6.5 10-6.5S22 12 22 12s-3.6 6.5-10 6.5S2 12 2 12Z"></path><circle cx="12" cy="12" r="3" fill="currentColor" stroke="none"></circle></svg>
          regard
        </h1>
        <tool-bar aria-label="Page">
        ${this.renderModels()}
        <div class="actions">
          <button type="button" class="quiet" id="tour" ?disabled=${!store.trace} @click=${() => (this.isTourOpen = true)}>Tour</button>
          <button type="button" class="quiet" id="undo" ?disabled=${!store.canUndo} @click=${() => store.undo()}>Undo</button>
          <button type="button" class="quiet" id="redo" ?disabled=${!store.canRedo} @click=${() => store.redo()}>Redo</button>
          <button type="button" id="export" aria-haspopup="dialog" @click=${() => this.exportDialog.open(this.view)}>Export</button>
          <button type="button" class="quiet" id="theme" aria-label=${isDark() ? "Use light colors" : "Use dark colors"} @click=${this.toggleTheme}>${isDark() ? "☀" : "☾"}</button>
          <button type="button" class="quiet" id="help" aria-label="Keyboard shortcuts" @click=${() => this.help.showModal()}>?</button>
        </div>
        </tool-bar>
      </header>
      ${this.renderAbout()}
      <source-bar .store=${store} @run=${() => this.main.focus({ preventScroll: true })}></source-bar>
      <div class="tabs" role="tablist" aria-label="Views" @keydown=${this.moveTab}>
        ${this.tabs.map((tab, index) => html`<button type="button" role="tab" id=${`tab-${tab}`} aria-keyshortcuts=${index + 1} aria-selected=${tab === this.tab} aria-controls="view" tabindex=${tab === this.tab ? 0 : -1} @click=${() => store.show({ tab })}>${TAB_NAMES[tab]}</button>`)}
      </div>
      <div class="progress">${store.loading ? html`<i></i>` : ""}</div>
      ${store.error ? renderFailure(`${store.error}${store.trace ? " Below is the last result." : ""}`, () => store.retry()) : ""}
      ${store.trace?.changes && this.tab !== "compare" ? html`<changes-panel .store=${store}></changes-panel>` : ""}
      <main id="view" role="tabpanel" tabindex="-1" aria-labelledby=${`tab-${this.tab}`} class=${store.loading ? "loading" : ""} aria-busy=${store.loading} @drawn=${() => this.exportDialog.requestUpdate()}>${this.renderView()}</main>
      <div class="hidden" role="status" aria-live="polite" id="announcement">${store.announcement}</div>
      ${this.toast ? html`<div class="toast">${this.toast}</div>` : ""}
      ${this.isTourOpen && store.trace ? html`<guided-tour .store=${store} @close=${this.closeTour}></guided-tour>` : ""}
      <export-dialog .store=${store} @exported=${(event: CustomEvent<string>) => this.report(event.detail)}></export-dialog>
      <dialog aria-labelledby="shortcuts">
        <h2 id="shortcuts">Keyboard shortcuts</h2>
        <dl>${SHORTCUTS.map(([keys, text]) => html`<dt><kbd>${keys}</kbd></dt><dd>${text}</dd>`)}</dl>
        <form method="dialog"><button class="primary">Close</button></form>
      </dialog>
    `;
  }

  /** What the author of an exported page wrote about it. */
  private renderAbout(): TemplateResult | string {
    const { title, caption, note } = this.store.client.saved ?? {};
    if (!title && !caption && !note) return "";
    return html`<section class="about" aria-label="About this page">
      ${title ? html`<h2>${title}</h2>` : ""}${caption ? html`<p>${caption}</p>` : ""}${note ? html`<p class="muted">${note}</p>` : ""}
    </section>`;
  }

  private renderModels(): TemplateResult {
    const { models, state: { model } } = this.store;
    if (models.length < 2) return html`<span class="muted">${models[0]?.name ?? ""}</span>`;
    const change = (event: Event): void => this.store.chooseModel((event.target as HTMLSelectElement).value);
    return html`<label class="field">Model <select id="model" @change=${change}>${models.map((each) => html`<option value=${each.id} ?selected=${each.id === model} ?disabled=${each.id !== model && !this.store.canTrace({ model: each.id, edits: [] })}>${each.name}</option>`)}</select></label>`;
  }

  private renderView(): TemplateResult {
    const { store } = this;
    if (this.tab === "corpus") return html`<corpus-view .store=${store}></corpus-view>`;
    if (this.tab === "gallery") return html`<gallery-view .store=${store}></gallery-view>`;
    if (this.tab === "model") return html`<model-view .store=${store}></model-view>`;
    if (!store.trace) return store.loading || store.error ? html`` : this.renderWelcome();
    switch (this.tab) {
      case "attention":
        return html`<attention-view .store=${store}></attention-view>`;
      case "steps":
        return html`<steps-view .store=${store}></steps-view><neighbors-panel .store=${store}></neighbors-panel>`;
      case "equation":
        return html`<equation-view .store=${store}></equation-view>`;
      case "compare":
        return html`<compare-view .store=${store}></compare-view>`;
      case "image":
        return html`<image-view .store=${store}></image-view>`;
      default:
        return html`<translate-view .store=${store}></translate-view><neighbors-panel .store=${store}></neighbors-panel>`;
    }
  }

  private renderWelcome(): TemplateResult {
    return html`<section class="panel empty">
      <h2>${this.store.readsImages ? "Open an image to describe it" : "Type a source text, and press Enter"}</h2>
      ${this.store.readsImages && this.store.state.text ? html`<p>A link does not contain images. Open the file <bdi><b>${this.store.state.text}</b></bdi> to see this page again.</p>` : ""}
      <p class="muted">The page shows which parts of the source the model attends to, step by step.</p>
    </section>`;
  }

  private moveTab(event: KeyboardEvent): void {
    const index = this.tabs.indexOf(this.tab);
    const count = this.tabs.length;
    const targets: Record<string, number> = { ArrowRight: (index + 1) % count, ArrowLeft: (index + count - 1) % count, Home: 0, End: count - 1 };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.store.show({ tab: at(this.tabs, target) });
    void this.updateComplete.then(() => this.shadowRoot!.querySelector<HTMLElement>('[role="tab"][aria-selected="true"]')!.focus());
  }

  private press(event: KeyboardEvent): void {
    const target = event.composedPath()[0] as HTMLElement;
    const isTyping = /^(TEXTAREA|INPUT|SELECT)$/.test(target.tagName ?? "");
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && target.tagName !== "TEXTAREA") {
      event.preventDefault();
      if (event.shiftKey) this.store.redo();
      else this.store.undo();
      return;
    }
    if (isTyping && event.key === "Escape" && !event.isComposing && !this.isDialogOpen) this.main.focus();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || this.isDialogOpen) return;
    const tab = this.tabs[Number(event.key) - 1];
    const actions: Record<string, () => void> = {
      "/": () => this.sourceBar.focusText(),
      "?": () => this.help.showModal(),
      t: () => this.toggleTheme(),
    };
    const action = tab ? () => this.store.show({ tab }) : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  private get isDialogOpen(): boolean {
    return this.help.open || this.exportDialog.isOpen;
  }

  protected override willUpdate(): void {
    const focused = findFocused();
    if (focused) {
      const parents = listParents(focused);
      requestAnimationFrame(() => this.keepFocus(focused, parents));
    }
  }

  /** If the control that had the focus was removed or disabled, move the focus to the next one near it, or to the view. */
  private keepFocus(focused: Element, parents: Element[]): void {
    if (focused.isConnected && !focused.matches(":disabled")) return;
    const near = parents.filter((each) => each.isConnected).map((each) => [...each.querySelectorAll<HTMLElement>(FOCUSABLE)]).find((each) => each.length);
    const next = near?.find((each) => focused.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING) ?? near?.[0];
    (next ?? this.main).focus({ preventScroll: true });
  }

  private toggleTheme(): void {
    setTheme(isDark() ? "light" : "dark");
    localStorage.setItem("regard.theme", isDark() ? "dark" : "light");
    this.store.notify();
  }

  private closeTour(): void {
    this.isTourOpen = false;
    this.shadowRoot!.querySelector<HTMLElement>("#tour")!.focus();
  }

  /** Show a message for a while, and read it aloud. */
  private report(message: string): void {
    this.toast = message;
    this.store.announce(message);
    setTimeout(() => (this.toast = ""), 3000);
  }
}

/** Return the element that has the focus, also inside shadow roots. */
function findFocused(): Element | null {
  let focused = document.activeElement;
  while (focused?.shadowRoot?.activeElement) focused = focused.shadowRoot.activeElement;
  return focused === document.body ? null : focused;
}

/** Return the elements that contain an element in its document or shadow root, the nearest first. */
function listParents(element: Element): Element[] {
  const parent = element.parentElement;
  return parent ? [parent, ...listParents(parent)] : [];
}
