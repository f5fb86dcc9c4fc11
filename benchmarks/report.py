#!/usr/bin/env python3
"""Renders what run.py found: text for the terminal, a table for a README, and a plot.

python3 benchmarks/report.py benchmarks/results/smollm2.json
… --readme README.md    replaces what stands between the two markers there
… --plot results.svg    draws latency against context; needs matplotlib, which `make bench` has in an environment
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

from figures import Figures, Spread
from systems import OURS

BEGIN = "<!-- benchmark:begin, rewritten by make bench -->"
END = "<!-- benchmark:end -->"

#: Colours that differ for colour-blind readers as well (Okabe and Ito), and one marker each.
STYLES = {
    OURS: ("#D55E00", "o"),
    "llama-flash": ("#0072B2", "s"),
    "llama-plain": ("#56B4E9", "D"),
    "onnxruntime": ("#009E73", "^"),
    "openvino": ("#CC79A7", "v"),
    "pytorch-dynamic": ("#444444", "P"),
    "pytorch-static": ("#999999", "X"),
    "torch-compile": ("#B8860B", "*"),
}


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def with_ratio(spread: Spread | None, ratio: float | None, *, ours: bool) -> str:
    """`24.1 (1.32)`; Statepack is the one that ratios refer to."""
    if spread is None:
        return "-"
    return number(spread.median) if ours or ratio is None else f"{number(spread.median)} ({ratio:.2f})"


def table(figures: Figures) -> list[list[str]]:
    """Heads, and a row for each system; why something was not measured stands elsewhere."""
    prefill = figures.results["settings"]["prefill"]
    heads = ["system", *(f"ms @{context}" for context in figures.contexts)]
    heads += ["growth, ms per 1,000", f"prefill of {prefill}, ms", "load, ms", "peak MB", "same tokens"]
    rows = [heads]
    for name, system in figures.results["systems"].items():
        row = [system["label"]]
        ours = name == OURS
        for context in figures.contexts:
            row.append(with_ratio(figures.step(name, context), figures.step_ratio(name, context), ours=ours))
        row.append(number(figures.growth(name)))
        row.append(with_ratio(figures.prefill(name), figures.prefill_ratio(name), ours=ours))
        load = figures.load(name)
        row.append(number(load.median if load else None, 0))
        peak = system.get("peak_bytes")
        row.append(number(peak / 1e6 if peak else None, 0))
        agreement = figures.agreement(name)
        # A system that failed late keeps what was measured before.
        failed = system["status"] != "measured"
        row.append(system["status"] if failed else "{} of {}".format(*agreement) if agreement else "-")
        rows.append(row)
    return rows


def markdown_table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" + "|---:" * (len(rows[0]) - 1) + "|", *lines[1:]])


def plain_table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def spread_lines(figures: Figures) -> list[str]:
    """The quartiles, which the table leaves out."""
    lines = []
    for name in figures.names:
        parts = [
            f"@{context} {spread.low:.1f}-{spread.high:.1f}"
            for context in figures.contexts
            if (spread := figures.step(name, context))
        ]
        prefill = figures.prefill(name)
        if prefill:
            parts.append(f"prefill {prefill.low:.0f}-{prefill.high:.0f}")
        lines.append(f"{figures.label(name)}: {', '.join(parts)}")
    return lines


def failures(figures: Figures) -> list[str]:
    return [
        f"{system['label']}: {system['status']}: {system['reason']}"
        for system in figures.results["systems"].values()
        if system["status"] != "measured"
    ]


def disagreements(figures: Figures) -> list[str]:
    """Systems that continue the prompt in another way than the reference."""
    lines = []
    for name in figures.names:
        agreement = figures.agreement(name)
        if agreement and agreement[0] < agreement[1]:
            lines.append(
                f"{figures.label(name)}: token {agreement[0] + 1} differs from {figures.label(figures.reference)}"
            )
    return lines


def random_context_lines(figures: Figures) -> list[str]:
    """Where the tokens behind random contexts part; that is no error, as random text has near ties."""
    lines = []
    for name in figures.names:
        parts = [
            f"@{context} {same} of {of}" for context, (same, of) in figures.random_agreement(name).items() if same < of
        ]
        if parts:
            lines.append(f"{figures.label(name)}: {', '.join(parts)}")
    return lines


def busy(figures: Figures) -> str:
    loads = [entry["load"] for entry in figures.results["loads"]]
    if not loads:
        return "no load was recorded"
    above = sum(load > 0.05 for load in loads)
    return f"other load before the {len(loads)} rounds: at most {100 * max(loads):.0f} %, above 5 % before {above}"


def bandwidth_line(figures: Figures) -> str:
    found = [(streams, figures.bandwidth(streams)) for streams in (1, 4)]
    parts = [
        f"{spread.median / 1e9:.1f} GB/s ({spread.low / 1e9:.1f}-{spread.high / 1e9:.1f}) with {streams} "
        f"stream{'s' if streams > 1 else ''} a thread"
        for streams, spread in found
        if spread
    ]
    return "read bandwidth: " + (", ".join(parts) or "not measured")


def text(figures: Figures) -> str:
    results = figures.results
    settings = results["settings"]
    sections = [
        f"{results['machine']['processor']}, {results['machine']['cores']} cores, {settings['threads']} threads, "
        f"float32, revision {results['revision']}, {results['date']}, {results['seconds']} s",
        plain_table(table(figures)),
        "in parentheses: times as long as Statepack, the median over rounds in which systems alternate",
    ]
    for title, lines in [
        ("quartiles, ms", spread_lines(figures)),
        ("not measured", failures(figures)),
        ("other tokens behind the prompt", disagreements(figures)),
        ("other tokens behind random contexts, which have near ties", random_context_lines(figures)),
        ("machine", [bandwidth_line(figures), busy(figures)]),
        ("targets", target_lines(figures)),
    ]:
        if lines:
            sections.append("\n".join([title + ":", *(f"  {line}" for line in lines)]))
    return "\n\n".join(sections) + "\n"


def target_lines(figures: Figures) -> list[str]:
    return [
        f"{target.claim}: {number(target.found, 2)} ({'at most' if target.at_most else 'at least'} "
        f"{target.bound:.2f}): {target.verdict}"
        for target in figures.targets()
    ]


def markdown(figures: Figures, plot: str | None) -> str:
    """What a README shows."""
    results = figures.results
    settings = results["settings"]
    parts = []
    if plot:
        parts.append(f"![Milliseconds per step against the context, a line for each system]({plot})")
    parts.append(markdown_table(table(figures)))
    notes = [
        f"SmolLM2-135M, float32 weights and arithmetic everywhere, {settings['threads']} threads, batch 1, on "
        f"{results['machine']['processor']} with {results['machine']['cores']} cores, {results['date']}, at "
        f"`{results['revision']}`. In parentheses: times as long as Statepack, the median over rounds in which the "
        "systems alternate.",
        capitalised(bandwidth_line(figures)) + "; " + busy(figures) + ".",
        *(f"Not in the table: {line}." for line in failures(figures)),
        *(f"{line}." for line in disagreements(figures)),
    ]
    parts.append("\n".join(notes))
    return "\n\n".join(parts)


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def replace_between_markers(document: str, content: str) -> str:
    begin, end = document.find(BEGIN), document.find(END)
    if begin < 0 or end < begin:
        raise SystemExit(f"the document has no lines {BEGIN} and {END}")
    return document[: begin + len(BEGIN)] + "\n" + content + "\n" + document[end:]


def draw(figures: Figures, path: pathlib.Path) -> None:
    """Latency against context. The same results give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "statepack", "font.size": 10, "axes.spines.top": False})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120, layout="constrained")
    for name in figures.names:
        points = [(context, spread) for context in figures.contexts if (spread := figures.step(name, context))]
        if not points:
            continue
        colour, marker = STYLES.get(name, ("#000000", "o"))
        ours = name == OURS
        contexts = [context for context, _ in points]
        medians = [spread.median for _, spread in points]
        axes.fill_between(
            contexts, [spread.low for _, spread in points], [spread.high for _, spread in points],
            color=colour, alpha=0.12, linewidth=0,
        )  # fmt: skip
        axes.plot(
            contexts, medians, color=colour, marker=marker, markersize=5, label=figures.label(name),
            linewidth=2.5 if ours else 1.5, zorder=3 if ours else 2,
        )  # fmt: skip
    limits = [
        (context, 1000 * figures.step_bytes(context) / rate.median)
        for context in figures.contexts
        if (rate := Spread.of(figures.read_rates(context, "decode").values()))
    ]
    if limits:
        axes.plot(
            *zip(*limits, strict=True),
            color="#000000",
            linestyle=":",
            linewidth=1.2,
            label="reading weights and cache once",
        )
    settings = figures.results["settings"]
    axes.set_xlabel("context (positions in the cache)")
    axes.set_ylabel("time per step (ms)")
    axes.set_title(
        f"SmolLM2-135M, float32, {settings['threads']} threads: median of a step, band: quartiles", fontsize=10
    )
    axes.set_xticks(figures.contexts)
    axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines["right"].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date in the file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--readme", type=pathlib.Path, help="rewrite the table between the markers of this file")
    parser.add_argument("--plot", type=pathlib.Path, help="draw to this .svg or .png")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.results.read_text())
    figures = Figures(results)
    print(text(figures), end="")
    if options.plot:
        draw(figures, options.plot)
        print(f"\nwrote {options.plot}")
    if options.readme:
        plot = os.path.relpath(options.plot, options.readme.parent) if options.plot else None
        document = options.readme.read_text()
        options.readme.write_text(replace_between_markers(document, markdown(figures, plot)))
        print(f"rewrote the table in {options.readme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
