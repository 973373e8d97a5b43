"""The settings of clients (docs/client-settings.md), and the options of Spark's source and sink (docs/spark.md)."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.client.config import AdminConfig, CommonConfig, ConsumerConfig, ProducerConfig, effective_settings
from strandline.spark.options import OPTIONS
from strandline.spark.sink_options import SINK_OPTIONS


def settings_table() -> str:
    """One table a kind of client, each setting under Kafka's name."""
    common = effective_settings(CommonConfig())
    chapters = []
    for kind in (CommonConfig, ProducerConfig, ConsumerConfig, AdminConfig):
        rows = [f"Settings of {kind.title}:", "", "| setting | default | meaning |", "|---|---|---|"]
        for name, (shown, _, sentence) in effective_settings(kind()).items():
            if kind is CommonConfig or name not in common:
                rows.append(f"| `{name}` | {shown} | {sentence} |")
        chapters.append("\n".join(rows))
    return "\n\n".join(chapters) + "\n"


def source_options_table() -> str:
    """The options of the Spark source."""
    return _options(OPTIONS)


def sink_options_table() -> str:
    """The options of the Spark sink."""
    return _options(SINK_OPTIONS)


def _options(sentences: Mapping[str, str]) -> str:
    rows = "".join(f"| `{name}` | {sentence} |\n" for name, sentence in sentences.items())
    return f"| option | meaning |\n|---|---|\n{rows}"
