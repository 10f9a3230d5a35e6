/** The page: languages, the two texts, alternatives, attention weights and documents. */
import { html, LitElement, type PropertyValues, type TemplateResult } from "lit";
import { customElement, property, query, state } from "lit/decorators.js";
import { at } from "../arrays.js";
import { applyTheme, isDark } from "../palette.js";
import { findWord, splitAtWords } from "./alignment.js";
import type { Language } from "./client.js";
import { AUTO, parseFragment, PAUSE, toFragment, type Input, type Store, type TranslatedFile } from "./store.js";

/** Where the API key is kept until the tab of the browser is closed. */
export const KEY = "regard.key";

const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["Ctrl+Enter", "translate now"],
  ["/", "edit the text"],
  ["S", "swap the languages"],
  ["C", "copy the result"],
  ["← → Home End", "move between the words of the result"],
  ["Enter, Space", "show the attention weights of a word, or hide them"],
  ["Esc", "hide the attention weights"],
  ["T", "light or dark colors"],
  ["?", "list the keys"],
];

const TITLES = { translate: "Translation", predict: "Prediction", caption: "Caption" } as const;

@customElement("translator-app")
export class TranslatorApp extends LitElement {
  @property({ attribute: false }) store!: Store;
  @state() private isDropping = false;
  @state() private hasCopied = false;
  /** The word of the result that the Tab key reaches. */
  @state() private current = 0;
  @query("textarea") private textarea!: HTMLTextAreaElement | null;
  @query("dialog") private help!: HTMLDialogElement;
  @query(".result .text") private resultText!: HTMLElement | null;
  private picture: { file: File; url: string } | null = null;

  /** One style sheet applies to this page and to the form that the server renders. */
  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.store.addEventListener("change", () => this.requestUpdate());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      applyTheme();
      this.requestUpdate();
    });
    addEventListener("keydown", (event) => this.press(event));
    addEventListener("hashchange", () => this.store.change(parseFragment(location.hash)));
    document.addEventListener("selectionchange", () => this.followCaret());
    addEventListener("dragover", (event) => this.drag(event));
    addEventListener("dragleave", (event) => (this.isDropping = event.relatedTarget !== null && this.isDropping));
    addEventListener("drop", (event) => this.drop(event));
  }

  focusText(): void {
    this.textarea?.focus();
    this.textarea?.setSelectionRange(this.textarea.value.length, this.textarea.value.length);
  }

  protected override updated(_changed: PropertyValues): void {
    const { store } = this;
    const fragment = toFragment(store.input);
    if (!store.isLoading && !store.isOutdated && fragment !== location.hash) history.replaceState(null, "", fragment);
  }

  protected override render(): TemplateResult {
    const { store } = this;
    return html`
      <header>
        <h1>
          <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" aria-hidden="true"><path d="M2 12s3.6-6.5 10-6.5S22 12 22 12s-3.6 6.5-10 6.5S2 12 2 12Z"></path><circle cx="12" cy="12" r="3" fill="currentColor" stroke="none"></circle></svg>
          regard
        </h1>
        ${this.renderModels()} ${this.renderKey()}
        <div class="actions">
          <button type="button" class="quiet" id="theme" aria-label=${isDark() ? "Use light colors" : "Use dark colors"} @click=${this.toggleTheme}>${isDark() ? "☀" : "☾"}</button>
          <button type="button" class="quiet" id="help" aria-label="Keyboard shortcuts" @click=${() => this.help.showModal()}>?</button>
        </div>
      </header>
      <main>
        ${store.kind === "translate" ? this.renderLanguages() : ""}
        <div class="progress">${store.isLoading ? html`<i></i>` : ""}</div>
        ${this.renderFailure()}
        <div class="panes">
          ${store.kind === "caption" ? this.renderImage() : this.renderSource()}
          ${this.renderResult()}
        </div>
        ${this.renderWeights()} ${this.renderAlternatives()} ${this.renderFiles()}
      </main>
      <div class="hidden" role="status" aria-live="polite" id="announcement">${store.announcement}</div>
      ${this.isDropping ? html`<div class="drop">${store.kind === "caption" ? "Drop an image to describe it" : "Drop documents to translate them"}</div>` : ""}
      <dialog aria-labelledby="shortcuts">
        <h2 id="shortcuts">Keyboard shortcuts</h2>
        <dl>${SHORTCUTS.map(([keys, text]) => html`<dt><kbd>${keys}</kbd></dt><dd>${text}</dd>`)}</dl>
        <form method="dialog"><button class="primary">Close</button></form>
      </dialog>
    `;
  }

  private renderModels(): TemplateResult | string {
    const { otherModels, sources, input } = this.store;
    if (!otherModels.length) return "";
    return html`<label class="field">Model <select id="model" @change=${this.choose("model")}>
      ${sources.length ? html`<option value="" .selected=${!input.model}>Translation</option>` : ""}
      ${otherModels.map(({ name }) => html`<option value=${name} .selected=${name === input.model}>${name}</option>`)}
    </select></label>`;
  }

  private renderKey(): TemplateResult | string {
    const { store } = this;
    if (!store.settings.keyRequired) return "";
    const change = (event: Event): void => {
      const { value } = event.target as HTMLInputElement;
      sessionStorage.setItem(KEY, value);
      store.setKey(value);
    };
    return html`<label class="field">API key <input id="key" type="password" autocomplete="off" .value=${store.client.key} @change=${change} /></label>`;
  }

  private renderLanguages(): TemplateResult {
    const { store } = this;
    const { source, target } = store.input;
    const option = ({ code, name }: Language, selected: string): TemplateResult =>
      html`<option value=${code} .selected=${code === selected}>${name}</option>`;
    return html`<div class="languages">
      <select id="source" aria-label="Source language" @change=${this.choose("source")}>
        <option value=${AUTO} .selected=${source === AUTO}>Detect language</option>
        ${store.sources.map((each) => option(each, source))}
      </select>
      <button type="button" id="swap" aria-label="Swap the languages" ?disabled=${!store.swapped} @click=${() => store.swap()}>⇄</button>
      <select id="target" aria-label="Target language" @change=${this.choose("target")}>
        ${store.targets.map((each) => option(each, target))}
      </select>
    </div>`;
  }

  private choose(field: keyof Input): (event: Event) => void {
    return (event) => this.store.change({ [field]: (event.target as HTMLSelectElement).value });
  }

  private renderFailure(): TemplateResult | string {
    const { failure } = this.store;
    if (!failure) return "";
    return html`<div class="panel error row" role="alert"><p>${failure.message}</p><button type="button" id="retry" @click=${failure.retry}>Retry</button></div>`;
  }

  private renderSource(): TemplateResult {
    const { store } = this;
    const { settings, input, length } = store;
    const isTranslation = store.kind === "translate";
    return html`<section class="pane" aria-label="Source">
      <div class="editor">
        <div class="layer text" dir="auto" aria-hidden="true">${this.renderLayer()}&#8203;</div>
        <textarea class="text" id="text" dir="auto" spellcheck="true" aria-label="Source text" aria-describedby="count" placeholder="Type or paste a text" .value=${input.text}
          @input=${this.type} @pointermove=${this.point} @pointerleave=${() => store.hover(null)} @blur=${() => store.hover(null)}></textarea>
      </div>
      <div class="bar">
        ${isTranslation && settings.filesTranslation
          ? html`<label class="file">Open documents <input type="file" multiple accept=${settings.supportedFilesFormat.join(",")} @change=${this.openFiles} /></label>`
          : ""}
        ${input.text ? html`<button type="button" class="quiet" id="clear" @click=${this.clear}>Clear</button>` : ""}
        <span class="count number ${store.isTooLong ? "bad" : "muted"}" id="count">${length.toLocaleString("en")}${settings.charLimit >= 0 ? ` / ${settings.charLimit.toLocaleString("en")}` : ""}<span class="hidden"> characters</span></span>
      </div>
    </section>`;
  }

  /** The words of the source behind the text field: highlighted by alignment, or shaded by attention weights. */
  private renderLayer(): (TemplateResult | string)[] | string {
    const { store } = this;
    const { result, weights } = store;
    if (!result || result.best.source !== store.input.text) return store.input.text;
    const lit = store.findHighlighted("source");
    const first = weights ? at(result.best.sentences, weights.sentence).firstSourceWord : 0;
    return splitAtWords(result.best.source, result.best.sourceWords).map(({ text, word }) => {
      if (word === null) return text;
      const share = weights?.values?.words[word - first] ?? 0;
      return html`<span data-word=${word} class=${lit.includes(word) ? "lit" : ""} .style=${`--share:${Math.round(100 * share)}%`}>${text}</span>`;
    });
  }

  private renderImage(): TemplateResult {
    const { image } = this.store;
    if (image !== (this.picture?.file ?? null)) {
      if (this.picture) URL.revokeObjectURL(this.picture.url);
      this.picture = image && { file: image, url: URL.createObjectURL(image) };
    }
    return html`<section class="pane" aria-label="Source">
      <div class="picture">${this.picture ? html`<img src=${this.picture.url} alt=${this.picture.file.name} />` : html`<p class="muted">Open or drop an image to describe it.</p>`}</div>
      <div class="bar"><label class="file">Open an image <input type="file" accept="image/png,image/jpeg,image/webp" @change=${this.openFiles} /></label></div>
    </section>`;
  }

  private renderResult(): TemplateResult {
    const { store } = this;
    const { result } = store;
    const title = TITLES[store.kind];
    const detected = result?.detected;
    const language = result && !result.input.model ? result.input.target : "";
    return html`<section class="pane result ${store.isOutdated ? "outdated" : ""}" aria-label=${title} aria-busy=${store.isLoading}>
      <div class="text" role="group" aria-label=${`${title} text`} dir="auto" lang=${language} @pointerover=${this.enter} @pointerleave=${() => store.hover(null)}
        @focusin=${this.enter} @focusout=${() => store.hover(null)} @click=${this.select} @keydown=${this.moveWord}>${result ? this.renderWords() : html`<span class="muted">${title}</span>`}</div>
      <div class="bar">
        ${detected ? html`<span class="muted small detected">Detected: ${this.nameLanguage(detected.language)}${detected.confidence ? ` (${Math.round(detected.confidence)}%)` : ""}</span>` : ""}
        <button type="button" class="quiet" id="copy" ?disabled=${!store.shownText} @click=${() => void this.copy()}>${this.hasCopied ? "Copied" : "Copy"}</button>
        ${store.explorer ? html`<a class="quiet button" id="explore" href=${store.explorer} target="_blank" rel="noopener">Explore<span class="hidden"> how the model computes this (opens a new tab)</span></a>` : ""}
      </div>
    </section>`;
  }

  private renderWords(): (TemplateResult | string)[] | TemplateResult | string {
    const { store } = this;
    const { best, shown } = store.result!;
    if (!store.shownText) return html`<span class="muted">The result is empty.</span>`;
    if (shown > 0) return store.shownText;
    const lit = store.findHighlighted("result");
    const current = Math.min(this.current, best.words.length - 1);
    return splitAtWords(best.text, best.words).map(({ text, word }) =>
      word === null
        ? text
        : html`<span role="button" class="word ${lit.includes(word) ? "lit" : ""}" data-word=${word} tabindex=${word === current ? 0 : -1} aria-pressed=${store.weights?.word === word}>${text}</span>`,
    );
  }

  private renderWeights(): TemplateResult | string {
    const { result, weights } = this.store;
    if (!result || !weights) return "";
    const { sourceWords, source, sentences, text, words } = result.best;
    const { firstSourceWord } = at(sentences, weights.sentence);
    const [start, end] = at(words, weights.word);
    const bar = (name: TemplateResult, weight: number): TemplateResult =>
      html`<li>${name}<span class="meter"><i .style=${`width:${100 * weight}%`}></i></span><span class="number small">${Math.round(100 * weight)}%</span></li>`;
    return html`<section class="panel stack" aria-label="Attention weights" id="weights">
      <div class="row"><h2>Attention of <bdi>“${text.slice(start, end)}”</bdi></h2><button type="button" class="quiet" id="close" @click=${() => this.closeWeights()}>Close</button></div>
      ${weights.values
        ? html`<ol class="bars">
            ${weights.values.words.map((weight, index) => bar(html`<bdi>${source.slice(...at(sourceWords, firstSourceWord + index))}</bdi>`, weight))}
            ${weights.values.rest >= 0.005 ? bar(html`<span class="muted">other tokens</span>`, weights.values.rest) : ""}
          </ol>`
        : html`<p class="muted">Computing …</p>`}
    </section>`;
  }

  private renderAlternatives(): TemplateResult | string {
    const { result } = this.store;
    if (!result?.alternatives.length) return "";
    return html`<section class="panel stack" aria-labelledby="alternatives">
      <h2 id="alternatives">Alternatives</h2>
      <ul class="alternatives">
        ${[result.best.text, ...result.alternatives].map((text, index) =>
          index === result.shown ? "" : html`<li><button type="button" class="quiet" dir="auto" @click=${() => this.store.show(index)}>${text}</button></li>`,
        )}
      </ul>
    </section>`;
  }

  private renderFiles(): TemplateResult | string {
    const { files } = this.store;
    if (!files.length) return "";
    return html`<section class="panel stack" aria-labelledby="documents">
      <h2 id="documents">Documents</h2>
      <ul class="files">${files.map((entry) => html`<li><bdi>${entry.file.name}</bdi> ${this.renderFile(entry)}</li>`)}</ul>
    </section>`;
  }

  private renderFile(entry: TranslatedFile): TemplateResult {
    const { file, target, state, outcome } = entry;
    if (state === "waiting") return html`<span class="muted">Translating …</span>`;
    if (state === "failed")
      return html`<span class="bad">${outcome}</span><button type="button" @click=${() => void this.store.translateFile(entry)}>Retry</button>`;
    return html`<a class="button" href=${outcome} download=${file.name.replace(/(\.[^.]*)$/, `.${target}$1`)}>Download</a>`;
  }

  private nameLanguage(code: string): string {
    return this.store.languages.find((each) => each.code === code)?.name ?? code;
  }

  private type(event: Event): void {
    this.store.change({ text: (event.target as HTMLTextAreaElement).value }, PAUSE);
  }

  private clear(): void {
    this.store.change({ text: "" });
    this.focusText();
  }

  /** Highlight the source word under the pointer. The words are in the layer behind the text field. */
  private point(event: PointerEvent): void {
    const words = document.elementsFromPoint(event.clientX, event.clientY).filter((each) => each.matches(".layer [data-word]"));
    this.store.hover(words[0] ? { side: "source", word: readWord(words[0]) } : null);
  }

  /** Highlight the source word that contains the caret, for readers who use the keyboard. */
  private followCaret(): void {
    const { textarea, store } = this;
    const { result, input } = store;
    if (!textarea || document.activeElement !== textarea || !result || result.best.source !== input.text) return;
    const word = findWord(result.best.sourceWords, textarea.selectionStart);
    store.hover(word < 0 ? null : { side: "source", word });
  }

  private enter(event: Event): void {
    const element = (event.target as Element).closest("[data-word]");
    if (element && event.type === "focusin") this.current = readWord(element);
    this.store.hover(element && { side: "result", word: readWord(element) });
  }

  private select(event: Event): void {
    const element = (event.target as Element).closest("[data-word]");
    // A click that selects text does not request weights.
    if (!element || getSelection()?.type === "Range") return;
    this.current = readWord(element);
    void this.store.weigh(this.current);
  }

  private moveWord(event: KeyboardEvent): void {
    const count = this.store.result?.best.words.length ?? 0;
    const isReversed = getComputedStyle(event.target as Element).direction === "rtl";
    const step = isReversed ? -1 : 1;
    const targets: Record<string, number> = { ArrowRight: this.current + step, ArrowLeft: this.current - step, Home: 0, End: count - 1 };
    const target = targets[event.key];
    if (event.key === "Enter" || event.key === " ") void this.store.weigh(this.current);
    else if (target === undefined || target < 0 || target >= count) return;
    else this.focusWord(target);
    event.preventDefault();
  }

  private focusWord(word: number): void {
    this.current = word;
    this.resultText?.querySelector<HTMLElement>(`[data-word="${word}"]`)?.focus();
  }

  private closeWeights(): void {
    const { weights } = this.store;
    if (!weights) return;
    void this.store.weigh(weights.word);
    this.focusWord(weights.word);
  }

  private async copy(): Promise<void> {
    const text = this.store.shownText;
    if (!text || !this.resultText) return;
    // Browsers have a clipboard on https and localhost only.
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      getSelection()!.selectAllChildren(this.resultText);
      document.execCommand("copy");
    }
    this.hasCopied = true;
    this.store.announce("The result was copied.");
    setTimeout(() => (this.hasCopied = false), 2000);
  }

  private openFiles(event: Event): void {
    const input = event.target as HTMLInputElement;
    this.accept([...(input.files ?? [])]);
    input.value = "";
  }

  private accept(files: File[]): void {
    const { store } = this;
    if (store.kind === "translate") void store.translateFiles(files);
    else if (store.kind === "caption" && files[0]) store.openImage(files[0]);
  }

  private drag(event: DragEvent): void {
    const { store } = this;
    const accepts = store.kind === "caption" || (store.kind === "translate" && store.settings.filesTranslation);
    if (!accepts || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.isDropping = true;
  }

  private drop(event: DragEvent): void {
    if (!this.isDropping) return;
    event.preventDefault();
    this.isDropping = false;
    this.accept([...(event.dataTransfer?.files ?? [])]);
  }

  private press(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      void this.store.run();
      return;
    }
    if (event.key === "Escape" && this.store.weights && !this.help.open) {
      this.closeWeights();
      return;
    }
    const isTyping = /^(TEXTAREA|INPUT|SELECT)$/.test(target.tagName ?? "");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    const actions: Record<string, () => void> = {
      "/": () => this.focusText(),
      "?": () => this.help.showModal(),
      s: () => this.store.swap(),
      c: () => void this.copy(),
      t: () => this.toggleTheme(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  private toggleTheme(): void {
    localStorage.setItem("regard.theme", isDark() ? "light" : "dark");
    applyTheme();
    this.requestUpdate();
  }
}

const readWord = (element: Element): number => Number((element as HTMLElement).dataset["word"]);
