"""What watches a job: its callbacks and the profiler."""

from __future__ import annotations

from typing import ClassVar, List, Literal, Optional

from pydantic import model_validator

from fleetbert.config.keys import OnResume
from fleetbert.config.section import Section, key

# Tables of paddle.profiler.SummaryView.
View = Literal[
    "DeviceView", "OverView", "ModelView", "DistributedView", "KernelView", "OperatorView",
    "MemoryView", "MemoryManipulationView", "UDFView",
]  # fmt: skip


class Profiler(Section):
    on_resume: ClassVar[OnResume] = "free"

    enabled: bool = key(True, "measure reader_cost, batch_cost and ips")
    timer_only: bool = key(
        True, "measure times only; false: also record timelines and the slowest operators"
    )
    start_step: int = key(10, "timeline: first step to record in this run", ge=1)
    record_steps: int = key(5, "timeline: number of steps to record", ge=1)
    warmup_steps: int = key(
        1, "timeline: steps before it in which the profiler is ready and records nothing", ge=1
    )
    wait_steps: int = key(0, "timeline: steps without the profiler before warmup_steps", ge=0)
    repeat: int = key(
        1, "number of timelines, a file each; wait_steps and warmup_steps lie between two", ge=1
    )
    memory: bool = key(False, "timeline: also record each allocation of memory")
    views: List[View] = key(
        ["OverView", "ModelView", "OperatorView"],
        "timeline: tables of paddle.profiler.SummaryView, in a text file beside the timeline",
    )

    @model_validator(mode="after")
    def _steps_agree(self) -> Profiler:
        before = self.wait_steps + self.warmup_steps
        if self.start_step < before:
            raise ValueError(
                f"callbacks.profiler.start_step: {self.start_step} leaves no room for wait_steps "
                f"and warmup_steps, which come before it; set it to {before} or more"
            )
        return self


class Callbacks(Section):
    on_resume: ClassVar[OnResume] = "free"

    progress: bool = key(True, "show a progress bar on rank 0")
    visualdl: bool = key(
        True, "write VisualDL logs: figures, precision-recall curves, the network's graph"
    )
    tensorboard: bool = key(False, "write TensorBoard logs (needs tensorboardX)")
    mlflow: Optional[str] = key(
        None,
        "MLflow experiment to log to, at MLFLOW_TRACKING_URI, else in output_dir/mlflow (needs "
        "mlflow or mlflow-skinny)",
    )
    wandb: Optional[str] = key(
        None,
        "Weights & Biases project to log to (needs wandb; WANDB_MODE=offline keeps the logs here)",
    )
    histograms: bool = key(
        False, "histograms of each weight's gradient for VisualDL and TensorBoard at logged steps"
    )
    report: bool = key(True, "write report.html at the end")
    profiler: Profiler = Profiler()
