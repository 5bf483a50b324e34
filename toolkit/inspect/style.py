"""Style sheet of the page, kept in it so that it is one file that needs nothing else."""

CSS = """
:root {
  color-scheme: light dark; --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; --paper: #f7f7f4; --card: #ffffff;
  --line: #e4e4de; --ink: #1b1f1d; --soft: #646b67; --faint: #8b938e; --learn: #0b8457; --learn-ink: #06573a;
  --learn-tint: #d6f2e4; --learn-edge: #a5dcc3; --mask: #d5d9d6; --mask-edge: #e6e8e6; --mask-ink: #767d79;
  --special: #eceaf8; --special-ink: #5447a8; --special-edge: #cdc7ef; --user: #2f6bd8; --system: #7b50c9;
  --tool: #b2610a; --look: #b4480f; --look-tint: #fdeee2; --note: #2f6bd8; --drop: #c8402f; --cut: #e09a2b;
  --split: #5b8def; --shade: 0 1px 2px rgba(20, 30, 25, .05), 0 6px 20px rgba(20, 30, 25, .05);
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #121514; --card: #1a1e1c; --line: #2c322f; --ink: #e9edea; --soft: #a0a9a4; --faint: #7f8984;
    --learn: #2fc08a; --learn-ink: #8ff0c6; --learn-tint: #123d2d; --learn-edge: #1f6a4d; --mask: #3b423e;
    --mask-edge: #2b312e; --mask-ink: #8b948f; --special: #2a2742; --special-ink: #b9aef7; --special-edge: #46407a;
    --user: #7aa7ff; --system: #b795f5; --tool: #e9a55a; --look: #ffa266; --look-tint: #3a2516; --note: #7aa7ff;
    --drop: #f0705f; --cut: #e6ac4e; --split: #7aa2f7; --shade: 0 1px 2px rgba(0, 0, 0, .4);
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 var(--sans); }
main, header, footer { max-width: 1080px; margin: 0 auto; padding: 0 28px; }
.mono, code, .row, .tip { font-family: var(--mono); }
header { padding-top: 52px; }
.eyebrow { color: var(--soft); font-size: 13px; letter-spacing: .02em; margin: 0 0 6px; }
h1 {
  font-size: clamp(28px, 5.2vw, 50px); line-height: 1.08; letter-spacing: -.025em; font-weight: 680;
  margin: 0 0 22px; text-wrap: balance;
}
h1 em { font-style: normal; color: var(--learn); }
h2 { font-size: 21px; letter-spacing: -.012em; line-height: 1.25; margin: 0 0 3px; }
h3 { font-size: 14px; margin: 24px 0 8px; }
.card > h3:first-child { margin-top: 0; }
.lead { color: var(--soft); margin: 0 0 16px; max-width: 90ch; }
.share { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--mask); gap: 2px; }
.share b { background: var(--learn); min-width: 2px; }
.share-legend {
  display: flex; justify-content: space-between; font-size: 13px; color: var(--soft); margin: 7px 0 26px; gap: 16px;
}
.share-legend strong { color: var(--learn); }
.tiles {
  display: grid; grid-template-columns: repeat(6, 1fr); border: 1px solid var(--line); border-radius: 14px;
  background: var(--card); box-shadow: var(--shade); overflow: hidden;
}
.tiles div { padding: 14px 16px 13px; box-shadow: -1px -1px 0 var(--line); }
.tiles dt { font-size: 12.5px; color: var(--soft); }
.tiles dd {
  margin: 1px 0 0; font-size: 23px; font-weight: 640; letter-spacing: -.02em; font-variant-numeric: tabular-nums;
}
.tiles small { font-size: 12px; color: var(--faint); font-weight: 400; letter-spacing: 0; display: block; }
dl { margin: 0; }
.about { display: grid; grid-template-columns: auto 1fr; gap: 3px 14px; font-size: 13px; margin: 22px 0 0; }
.about dt { color: var(--faint); }
.about dd { margin: 0; overflow-wrap: anywhere; color: var(--soft); }
section { margin: 50px 0 0; }
.findings {
  list-style: none; padding: 0; margin: 26px 0 0; display: grid; grid-template-columns: 1fr 1fr; gap: 8px 12px;
}
.findings li {
  display: flex; gap: 10px; padding: 9px 13px; border-radius: 10px; border: 1px solid var(--line);
  background: var(--card); font-size: 14px; line-height: 1.4;
}
.findings li::before {
  flex: none; width: 19px; height: 19px; border-radius: 50%; text-align: center; font-size: 12px; line-height: 19px;
  font-weight: 700; color: var(--card);
}
.good::before { content: "✓"; background: var(--learn); }
.note::before { content: "i"; background: var(--note); }
.findings .look { background: var(--look-tint); border-color: transparent; }
.look::before { content: "!"; background: var(--look); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shade);
  padding: 18px 20px; margin: 0 0 14px;
}
.bar {
  display: flex; flex-wrap: wrap; gap: 10px 18px; align-items: center; justify-content: space-between;
  margin: 0 0 14px;
}
.legend { display: flex; flex-wrap: wrap; gap: 6px 16px; font-size: 13px; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
.swatch { width: 13px; height: 13px; border-radius: 3.5px; display: inline-block; flex: none; }
.toggle {
  display: inline-flex; border: 1px solid var(--line); border-radius: 9px; background: var(--card); padding: 2px;
}
.toggle label { padding: 4px 13px; border-radius: 7px; font-size: 13px; color: var(--soft); cursor: pointer; }
.toggle input { position: absolute; opacity: 0; }
.toggle input:checked + label { background: var(--ink); color: var(--paper); }
.toggle input:focus-visible + label { outline: 2px solid var(--note); outline-offset: 2px; }
.row { padding: 0; overflow: hidden; font-size: 13px; line-height: 1.75; }
.row-head {
  display: flex; flex-wrap: wrap; justify-content: space-between; gap: 2px 16px; padding: 9px 18px;
  border-bottom: 1px solid var(--line); font: 13px/1.5 var(--sans); color: var(--soft);
}
.row-head b { color: var(--ink); font-weight: 600; overflow-wrap: anywhere; }
.turn {
  display: grid; grid-template-columns: 98px minmax(0, 1fr); padding: 9px 18px 11px;
  border-top: 1px solid var(--mask-edge);
}
.row-head + .turn { border-top: 0; }
.role { font: 600 12.5px/1.75 var(--sans); color: var(--soft); }
.role-user { color: var(--user); }
.role-system, .role-developer { color: var(--system); }
.role-tool { color: var(--tool); }
.role-assistant, .role-completion { color: var(--learn); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; color: var(--mask-ink); min-width: 0; }
.frame { font-size: 11px; line-height: 1.7; color: var(--faint); overflow-wrap: anywhere; white-space: pre-wrap; }
.text + .frame { margin-top: 2px; }
.text i, .frame i { font-style: normal; padding: 2px 0; }
i.s { background: var(--learn-tint); color: var(--learn-ink); }
i.x {
  background: var(--special); color: var(--special-ink); border-radius: 4px; padding: 1px 4px !important;
  margin: 0 1px; font-size: 11px; box-shadow: inset 0 0 0 1px var(--special-edge);
}
i.x.s { background: var(--learn-tint); color: var(--learn-ink); box-shadow: inset 0 0 0 1px var(--learn); }
.tokens i:not(.x) { box-shadow: inset -1px 0 0 var(--mask-edge); }
.tokens i.s:not(.x) { box-shadow: inset -1px 0 0 var(--learn-edge); }
i:hover { outline: 1.5px solid var(--note); outline-offset: -1px; border-radius: 3px; }
.nl { font-weight: 400; opacity: .45; }
.texts .text .nl, .texts .text .part { display: none; }
.part { opacity: .5; }
.more {
  color: var(--faint); font: 12.5px/1.6 var(--sans); padding: 8px 18px 10px; border-top: 1px dashed var(--line);
}
.tip {
  position: absolute; z-index: 9; pointer-events: none; background: var(--ink); color: var(--paper); font-size: 12px;
  line-height: 1.5; padding: 6px 10px; border-radius: 8px; max-width: 320px; white-space: pre-line;
  box-shadow: 0 4px 16px rgba(0, 0, 0, .25); overflow-wrap: anywhere;
}
svg { display: block; width: 100%; overflow: visible; }
svg text { font: 12px var(--sans); fill: var(--soft); }
svg .mark { stroke: var(--ink); stroke-width: 1; opacity: .55; }
svg .limit { stroke: var(--look); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .limit-text { fill: var(--look); font-weight: 600; }
svg .axis { stroke: var(--line); }
svg .tick { fill: var(--faint); }
svg .hist { fill: var(--learn); }
svg .hist:hover, svg .laid:hover { opacity: .75; }
svg text.strong { fill: var(--ink); font-weight: 600; }
svg .pale { fill: var(--mask); }
svg .pale.odd { fill: var(--mask-edge); }
svg .learnt { fill: var(--learn); }
svg .padding { fill: none; stroke: var(--line); stroke-dasharray: 2 3; }
svg .border { stroke: var(--card); stroke-width: 2; }
svg .room { fill: none; stroke: var(--line); }
.strip { margin: 0 0 12px; }
.strip p {
  display: flex; justify-content: space-between; gap: 2px 14px; flex-wrap: wrap; margin: 0 0 4px; font-size: 13px;
  color: var(--soft);
}
.strip p b { color: var(--ink); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th {
  text-align: left; font-weight: 500; color: var(--soft); font-size: 12.5px; padding: 0 14px 7px 0;
  vertical-align: bottom; white-space: nowrap;
}
td { padding: 8px 14px 8px 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td.place { width: 170px; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td:last-child, th:last-child { padding-right: 0; }
td .place, .place { font: 12.5px/1.6 var(--mono); color: var(--soft); white-space: nowrap; }
.meter {
  display: inline-block; width: 74px; height: 7px; border-radius: 4px; background: var(--mask); overflow: hidden;
  vertical-align: 2px; margin-right: 8px;
}
.meter i { display: block; height: 100%; background: var(--learn); }
.meter.plain i { background: var(--soft); }
.ask { color: var(--mask-ink); }
.teach { color: var(--learn-ink); }
.excerpt { min-width: 230px; line-height: 1.45; }
.stack { display: flex; height: 22px; border-radius: 7px; overflow: hidden; gap: 2px; margin: 0 0 8px; }
.stack b { min-width: 3px; }
.quiet { color: var(--soft); margin: 0; }
.words { display: flex; flex-wrap: wrap; gap: 7px; }
.words span { border: 1px solid var(--line); border-radius: 8px; padding: 2px 9px; font-size: 13.5px; }
.words small { color: var(--faint); margin-left: 6px; }
footer { margin-top: 56px; padding-bottom: 44px; color: var(--faint); font-size: 13px; }
footer code { overflow-wrap: anywhere; }
@media (max-width: 820px) {
  .tiles { grid-template-columns: repeat(3, 1fr); }
  .findings { grid-template-columns: 1fr; }
}
@media (max-width: 560px) {
  .meter { display: none; }
  .pairs td { display: block; width: auto; padding-right: 0; }
  .pairs td + td { border-top: 0; padding-top: 0; }
  .place, td .place { white-space: normal; }
  td:first-child { min-width: 96px; }
  main, header, footer { padding-left: 16px; padding-right: 16px; }
  header { padding-top: 30px; }
  section { margin-top: 38px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles div { padding: 11px 14px; }
  .turn { grid-template-columns: 1fr; padding: 8px 14px 10px; }
  .row-head, .more { padding-left: 14px; padding-right: 14px; }
  .card:not(.row) { padding: 15px 14px; }
  .about { grid-template-columns: 1fr; gap: 0; }
  .about dd { margin-bottom: 6px; }
}
@media print {
  :root { --paper: #fff; --shade: none; }
  body { font-size: 12px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .toggle { display: none; }
  section { margin-top: 26px; }
  .card, .strip, tr { break-inside: avoid; }
  .row { break-inside: auto; }
  header { padding-top: 0; }
}
@media (prefers-reduced-motion: reduce) {
  html { scroll-behavior: auto; }
}
"""
