"""The prose of the tuning document in its two languages: data, and how a phrase is filled in.

Headings, tables, flags, ids and log lines are the same in both and do not stand here. Each phrase
has the same fields in each language. In English `{jobs}` and the like are counted nouns ("3 jobs");
what stands between backticks is literal.
"""

# ruff: noqa: RUF001, E501 - Chinese prose has full-width punctuation, and two columns a character

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pytest_xlatune.report.figures import counted


class Language(StrEnum):
    """A language that the tuning document is written in; the value is in the file's name."""

    ENGLISH = "en"
    CHINESE = "zh"


PHRASES: Mapping[str, tuple[str, str]] = {
    # -- the bullets of the header
    "written": ("Written: {text}", "撰写时间：{text}"),
    "model": ("Model: {text}", "模型：{text}"),
    "parallelism": ("Parallelism: {axes}", "并行方式：{axes}"),
    "parallelism-on": ("Parallelism: {axes} on {devices}", "并行方式：{axes}，{devices}"),
    "configuration": ("Configuration: {text}", "配置：{text}"),
    "nodes": ("Nodes: {text}", "节点：{text}"),
    "this-machine": ("this machine", "本机"),
    "image": ("Image: {text}", "镜像：{text}"),
    "launcher": ("Launcher: {text}", "启动方式：{text}"),
    "files": ("Base configuration: {text}", "基础配置文件：{text}"),
    "software": ("Software of the sweep: {text}", "扫描所用软件：{text}"),
    "load": ("Load: {batch}{length}, {dataset} data", "负载：{batch}{length}，{dataset} 数据"),
    "load-batch": (
        "{number} sequences per device and step",
        "每步每设备 {number} 条序列",
    ),
    "load-own": ("the model's own batch size", "模型自身的批大小"),
    "load-length": (", {number} tokens each", "，每条 {number} 个 token"),
    "steady": (
        (
            "Steady state: tokens over time of steps {first} to {last} of {steps}, in Tokens/s/device "
            "(TGS); at least {least} usable steps or no score"
        ),
        (
            "稳态：第 {first} 至 {last} 步（共 {steps} 步）的 token 数除以时间，单位 Tokens/s/device（TGS）；"
            "可用步数少于 {least} 则不计分"
        ),
    ),
    "cell": ("Cell: {text}", "单元：{text}"),
    "state": (
        "State: {state}: {final} of {trials} over, {jobs}; {tally}",
        "状态：{state}：{trials}中已结束 {final} 个，{jobs}；{tally}",
    ),
    "complete": ("complete", "已完成"),
    "preliminary": ("preliminary", "初步结果"),
    "of-cell": ("{text} ({cell})", "{text}（{cell}）"),
    # -- how the sweep ended
    "ended-winner": (
        "The sweep ended with a winner: it was decided on fresh randomised blocks.",
        "扫描以胜出者结束：由全新的随机区组判定。",
    ),
    "ended-bounded": (
        (
            "The sweep ended structurally bounded: no measured profile beats the baseline by more than "
            "{bound} (M, at 95 %), which is below {limit}."
        ),
        "扫描结论为结构性受限：没有任何已测配置比基线快超过 {bound}（M，95 %），低于 {limit}。",
    ),
    "ended-undecided": (
        "The sweep ended with all its trials: it confirmed no winner and cannot exclude one.",
        "全部试验已完成：没有确认胜出者，也不能排除其存在。",
    ),
    "ended-stopped": (
        "The sweep was stopped, and this report is preliminary. The reason as recorded: {reason}",
        "扫描已中止，本报告为初步报告。记录的原因：{reason}",
    ),
    "ended-running": (
        "The sweep is not over: {left} still planned. This report is preliminary.",
        "扫描尚未结束：还计划 {left}。本报告为初步报告。",
    ),
    "ended-partly": (
        (
            "The sweep is not over: what was asked for so far is measured, the rest is still to come. "
            "This report is preliminary."
        ),
        "扫描尚未结束：目前要求的试验均已完成，其余仍待进行。本报告为初步报告。",
    ),
    # -- TL;DR
    "best": (
        (
            "★ {profile} is faster than `baseline-deployed` by {delta} % (95 % interval {ci95}, "
            "n = {n})."
        ),
        "★ {profile} 快于 `baseline-deployed`：{delta} %（95 % 区间 {ci95}，n = {n}）。",
    ),
    "no-best": (
        "No profile is confirmed to be faster than `baseline-deployed`.",
        "没有任何配置被确认快于 `baseline-deployed`。",
    ),
    "bound": (
        "No profile beats the baseline by more than {bound} (M, at 95 %).",
        "没有任何配置比基线快超过 {bound}（M，95 %）。",
    ),
    "no-bound": (
        "How much a profile may be better than the baseline (M) is not known.",
        "配置最多可能比基线快多少（M）尚不清楚。",
    ),
    # -- inventory and the deployed environment
    "nothing-set": ("{title}: nothing is set.", "{title}：未设置任何内容。"),
    "recorded-file": (
        "{path} as it was when the sweep began; comments are left out.",
        "{path} 在扫描开始时的内容；注释已省略。",
    ),
    "effect-unmeasured": (
        "Not measured: the sweep has no profile {profile}.",
        "未测量：扫描中没有配置 {profile}。",
    ),
    "effect-FASTER": (
        "Without the deployed flags the cell is faster: they cost throughput here.",
        "去掉已部署的标志后更快：这些标志在此处降低吞吐。",
    ),
    "effect-SLOWER": (
        "Without the deployed flags the cell is slower: they help here.",
        "去掉已部署的标志后更慢：这些标志在此处有益。",
    ),
    "effect-EQUIVALENT": (
        "The deployed flags make no difference that matters here.",
        "已部署的标志在此处没有实质差别。",
    ),
    "effect-unknown": (
        "This does not tell whether the deployed flags help here.",
        "这不足以判断已部署的标志在此处是否有益。",
    ),
    "restored": (
        (
            "{profile} puts every deployed flag back to its default. Flags whose values XLA adds up "
            "cannot be put back by appending, so a sweep refuses them there. Variables stay as deployed "
            "unless the sweep states a value for them."
        ),
        (
            "{profile} 把每个已部署的标志恢复为默认值。XLA 会累加其值的标志无法通过追加来恢复，"
            "因此扫描会拒绝这样的配置。环境变量保持已部署的值，除非扫描为其写明取值。"
        ),
    ),
    # -- leaderboard
    "within-blocks": (
        (
            "delta % compares jobs of the same block; TGS is the mean of all jobs of a row, so the "
            "ratio of two rows may be another."
        ),
        "delta % 比较同一区组内的作业；TGS 是该行全部作业的均值，因此两行之比可能略有不同。",
    ),
    "own-wave": (
        (
            "Each wave was screened beside baselines of its own: delta % is against the line through "
            "those, so the order of two profiles of different waves is less sure than within one."
        ),
        (
            "每一波筛选都有自己的基线：delta % 相对于穿过这些基线的直线，因此不同波的两个配置之间的次序不如同一波内可靠。"
        ),
    ),
    "more-between": ("{profiles} between these.", "中间还有 {profiles}。"),
    "pending": ("Not measured yet: {names}.", "尚未测量：{names}。"),
    # -- the pipeline
    "bubble": (
        (
            "S stages, M microbatches and V repeats leave a bubble of (S-1)/(M V + S-1), twice the S-1 "
            "where activations are forwarded with a delay. Predicted is what the bubble alone changes; "
            "smaller microbatches cost something of their own."
        ),
        (
            "S 个阶段、M 个微批和 V 次重复留下的气泡为 (S-1)/(M V + S-1)；若激活值延迟转发，S-1 加倍。"
            "预测值只计气泡的变化；更小的微批自身也有代价。"
        ),
    ),
    "no-bubble": ("{profile}: {reason}.", "{profile}（原文）：{reason}。"),
    # -- why the winning flag wins
    "why-no-winner": ("There is no winner to explain.", "没有需要解释的胜出者。"),
    "why-tried": ("Why it was tried: {note}.", "尝试它的理由（原文）：{note}。"),
    "why-nothing": (
        (
            "No evidence (HLO dump, trace) of it and of `baseline-deployed` was recorded, so why it "
            "wins is not known. What to run: {command}"
        ),
        (
            "没有记录它与 `baseline-deployed` 的证据（HLO 转储、性能追踪），因此不知道它为何胜出。"
            "需要运行：{command}"
        ),
    ),
    "why-identical": (
        (
            "The two programs are identical, so nothing that the compiler does explains the gain. Only "
            "traces of both could show what happens at run time: {command}"
        ),
        (
            "两个程序完全相同，因此编译器所做的一切都不能解释该收益。只有两者的性能追踪才能显示运行时发生了什么："
            "{command}"
        ),
    ),
    "why-program-only": (
        (
            "The program changed as listed. Whether that is why it wins is not shown: that takes "
            "traces of both: {command}"
        ),
        "程序的变化如下表。这是否就是它胜出的原因尚未得到证明，需要两者的性能追踪：{command}",
    ),
    "why-explained": (
        (
            "The traces show the gain: a step's span changes by {moved}, and a gain of {delta} in TGS "
            "asks for {expected}. What it consists of is in the table."
        ),
        (
            "性能追踪显示了该收益：一步的跨度变化 {moved}，而 TGS 的收益 {delta} 需要 {expected}。"
            "其构成见下表。"
        ),
    ),
    "why-not-shown": (
        (
            "The traces do not show the gain: a step's span changes by {moved}, and a gain of {delta} "
            "in TGS asks for {expected}. The evidence does not explain why it wins."
        ),
        (
            "性能追踪没有显示该收益：一步的跨度变化 {moved}，而 TGS 的收益 {delta} 需要 {expected}。"
            "现有证据不能解释它为何胜出。"
        ),
    ),
    "why-other": (
        (
            "The evidence below is of {profile}, which led before; none of {best} was recorded. What to "
            "run: {command}"
        ),
        "以下证据属于此前领先的 {profile}；没有 {best} 的证据。需要运行：{command}",
    ),
    # -- negative findings and sign flips
    "no-negative": (
        "No profile is confirmed to be slower, and none had to be dropped.",
        "没有配置被确认更慢，也没有配置被放弃。",
    ),
    "signs": (
        (
            "Settings that were measured on more than one parallelism. A flip is confirmed where both "
            "sides are; single runs of opposite sign prove nothing."
        ),
        "在多种并行方式上测量过的设置。只有两侧都经确认，符号翻转才算确认；单次运行的符号相反不能证明任何事。",
    ),
    "no-signs": (
        "No setting was measured on more than one parallelism.",
        "没有设置在多种并行方式上测量过。",
    ),
    # -- recommended deployment
    "leave": ("Leave the deployed environment as it is.", "保持已部署的环境不变。"),
    "settings-gone": (
        "The sweep no longer names the settings of {profile}.",
        "扫描中已没有 {profile} 的设置。",
    ),
    "patch": (
        "A patch for `git apply`, at the root of the repository that holds {paths}:",
        "用于 `git apply` 的补丁，在包含 {paths} 的仓库根目录下执行：",
    ),
    "append": ("Append to {path}:", "追加到 {path}："),
    "no-patch": (
        "There is no patch, for {why}.",
        "没有补丁，原因（原文）：{why}。",
    ),
    "trainer": ("Give these to the trainer:", "把这些传给训练程序："),
    "guarded": (
        (
            "The guard is there because the recipe of {cell} conflicts with {other}: {names}. It reads "
            "{variables}, which whoever starts the trainer must export before the file is sourced."
        ),
        (
            "加上条件判断是因为 {cell} 的方案与 {other} 冲突：{names}。它读取 {variables}，"
            "启动训练程序的一方必须在加载该文件之前导出这些变量。"
        ),
    ),
    "not-guarded": (
        (
            "The recipe of {cell} conflicts with {other}: {names}. No variable tells these cells "
            "apart, so it is not in a file that both read: give it to the jobs of {cell} alone."
        ),
        (
            "{cell} 的方案与 {other} 冲突：{names}。没有变量能区分这些单元，因此它不放进两者共用的文件："
            "只传给 {cell} 的作业。"
        ),
    ),
    "measured-on": (
        (
            "Measured on {cell} only. Another parallelism may turn its sign, and so may another "
            "configuration of the model, which it was not held against."
        ),
        (
            "只在 {cell} 上测量过。换一种并行方式，效果可能反号；换成该模型的另一种配置也可能如此，"
            "而它尚未在其他配置上检验。"
        ),
    ),
    "holds-elsewhere": (
        "Measured on {cell}; a loss is excluded with {tags} too ({files}).",
        "在 {cell} 上测量；在 {tags} 上也已排除损失（{files}）。",
    ),
    "harmful-elsewhere": (
        (
            "The recipe is conditional: with {tags} it is slower or cannot run ({files}). Give it to "
            "the jobs of {cell} alone."
        ),
        "该方案有条件：在 {tags} 上更慢或无法运行（{files}）。只传给 {cell} 的作业。",
    ),
    "untold-elsewhere": (
        (
            "The recipe is conditional: whether it costs anything with {tags} was measured and cannot "
            "be told ({files}). It is shown for {cell}."
        ),
        "该方案有条件：在 {tags} 上是否有损失已测量但无法判断（{files}）。它只在 {cell} 上得到证明。",
    ),
    "other-parallelism": (
        "Another parallelism may turn its sign.",
        "换一种并行方式，效果可能反号。",
    ),
    "outdated": (
        "{cell} was measured before {path} changed; its recipe is in no patch. Measure it again.",
        "{cell} 是在 {path} 改动之前测量的，其方案不在补丁中。请重新测量。",
    ),
    "deployed-since": (
        (
            "The recipe of an earlier measurement of {cell} is deployed now: `baseline-deployed` was "
            "{before} TGS, the recipe promised {promised}, and it is {now}."
        ),
        (
            "{cell} 先前测得的方案现已部署：`baseline-deployed` 原为 {before} TGS，方案承诺 {promised}，"
            "现为 {now}。"
        ),
    ),
    # -- appendix
    "no-jobs": ("No job was submitted.", "没有提交任何作业。"),
}

_NOUNS: Mapping[str, str] = {
    "job": "个作业",
    "trial": "个试验",
    "device": "个设备",
    "more profile": "个配置",
}


@dataclass(frozen=True, slots=True)
class Say:
    """The phrases in one language: `say("bound", bound="1.3 %")`."""

    language: Language

    def __call__(self, key: str, **fields: object) -> str:
        """Return the phrase with its fields filled in."""
        english, chinese = PHRASES[key]
        template = english if self.language is Language.ENGLISH else chinese
        return template.format(**fields)

    def count(self, number: int, noun: str) -> str:
        """Return a number and its noun, e.g. `3 jobs`."""
        if self.language is Language.ENGLISH:
            return counted(number, noun)
        return f"{number} {_NOUNS[noun]}"


ENGLISH = Say(Language.ENGLISH)
CHINESE = Say(Language.CHINESE)
