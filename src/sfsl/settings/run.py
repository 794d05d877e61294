"""The settings of a run: every key has a default, a description and a check."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.secagg import default_threshold
from sfsl.secagg.graph import default_graph
from sfsl.secagg.messages import MAX_COMPLETE
from sfsl.settings.sections import explained, section_from
from sfsl.settings.source import TABLES, SourceName

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=1e6)]
Step = Literal["add", "adagrad", "adam"]
RowStep = Literal["heat", "add", "adagrad", "adam"]
Tracker = Literal["tensorboard", "mlflow", "wandb"]
Preset = Literal["cpp1", "cpp2", "cpp3", "cpp4", "cpp5"]
Scheme = Literal["sfsl", "hot", "sfl", "fsl", "fl", "centralized"]
# Schemes that hide something, for which plain sums are a stand-in; the others have no masks to begin with.
SECURE = ("sfsl", "hot", "sfl")
MOST_CLIENTS = 10_000  # of a round over hot rows
# Below this a row with one owner is hardly ever asked for by enough others with cpp2, and stays closed.
SMALL_COHORT = 30


@explained
class DataSettings(Checked, frozen=True):
    """Where samples come from.

    source: "synthetic" makes data up; "file" reads clicks from the table at path (CSV, TSV, Parquet, JSON
        lines; "csv" and "parquet" mean the same), "amazon" and "taobao" from theirs, "stored" from a folder
        that sfsl data made, "shakespeare" what roles say; "python" takes your own model and clients from the
        function fleet(seed) of the file at path; "catalogue" has no samples, and is for a server
        (serve.catalogue).
    path: The file to read (also .gz); empty for synthetic data.
    columns: Tables: the column of each field, where it is called otherwise: { user = "user_id", item =
        "movie_id" }. Fields: user, item, label, time, category; time = "#" takes lines in their order.
    label: Tables: which lines are clicks: a rule like "rating>=4" or "behavior=buy", the name of a column of
        0 and 1 or false and true, or "all". Empty: the column label; where there is none, every line is.
    unusable: Tables: a file is refused if more than this share of its lines cannot be used.
    world: Synthetic: in "tastes" items carry more than their category; in "films" few items are seen by many,
        who agree less; "paper" has the paper's statistics, and a category says nearly everything.
    users: Synthetic: how many users, each of them a client.
    scale: Synthetic: 1 is the paper's 143,534 items and 323 samples a client; films: 6,000 and 600.
    negatives: Sampled non-clicks per click, where the data records clicks only.
    held_out: The last share of each user's samples in time is for testing only.
    validation: The held-out samples of this share of the devices choose the model (run.keep, run.patience)
        and are not in the test set; 0: none, everyone's are in it (the paper).
    max_history: Clicks of a history that a model sees.
    context: Shakespeare: words that a model sees before the next one.
    text_ids: Tables: take ids for text even if they are whole numbers; text is recognised without it.
    """

    source: SourceName = "synthetic"
    path: str = ""
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    label: str = ""
    unusable: Share = 0.05
    world: Literal["tastes", "films", "paper"] = "films"
    users: Annotated[int, Meta(ge=2)] = 1000
    scale: Annotated[float, Meta(gt=0, le=1)] = 0.1
    negatives: Annotated[int, Meta(ge=1, le=100)] = 1
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    validation: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    max_history: Annotated[int, Meta(ge=1, le=10_000)] = 20
    context: Annotated[int, Meta(ge=1, le=1000)] = 10
    text_ids: bool = False


@explained
class ModelSettings(Checked, frozen=True):
    """What is trained.

    kind: For clicks: "din", the paper's deep interest network, "dien" and "bst", to which the order of clicks
        matters, or "logistic" regression. For words: "lstm".
    width: All but logistic: parameters in a row; lstm has a bias besides.
    slopes: DIN, DIEN, BST: activations of the tower, "dice" or "prelu".
    layout: DIN, DIEN, BST: "wide" is fit for averaging: the tower reads the mean of a history, and biases of
        rows and the match of item and history reach the score directly. "paper": the sum, and no such thing.
    initial: All but logistic: rows begin uniform within plus or minus this.
    """

    kind: Literal["din", "dien", "bst", "logistic", "lstm"] = "din"
    width: Annotated[int, Meta(ge=1, le=4096)] = 18
    slopes: Literal["dice", "prelu"] = "dice"
    layout: Literal["wide", "paper"] = "wide"
    initial: Annotated[float, Meta(ge=0, le=10)] = 0.15


@explained
class PrivacySettings(Checked, frozen=True):
    """How clients answer which rows they have, and how much noise covers what they learn.

    preset: The paper's choices: cpp1 asks for real rows only, cpp5 for the whole union. "auto" is cpp2; and
        cpp5 where a cohort is so small that hardly any row would have enough contributors otherwise.
    probabilities: Instead of a preset: [p1, p2, p3, p4]; empty takes the preset.
    mix: Each client its own choice: shares of clients by preset, { cpp2 = 0.7, cpp5 = 0.3 }.
    epsilon: Scheme "hot": what everything that leaves a client may cost it over the whole run, as user-level
        differential privacy (epsilon, delta); inf: no noise.
    delta: Scheme "hot": the chance with which epsilon may not hold.
    participations: Scheme "hot": rounds that train in which a client takes part at the most; noise is made
        for so many, and for one survey. "auto": what it takes for all rounds, everybody in turn.
    corruption: Scheme "hot": share of a cohort that may collude with the server and add no noise.
    """

    preset: Preset | Literal["auto"] = "auto"
    probabilities: tuple[Share, ...] = ()
    mix: dict[Preset, Share] = msgspec.field(default_factory=dict)
    epsilon: Annotated[float, Meta(gt=0)] = 8.0
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    participations: Annotated[int, Meta(ge=1, le=10**6)] | Literal["auto"] = "auto"
    corruption: Annotated[float, Meta(ge=0, lt=0.5)] = 0.1

    def require_sound(self) -> None:
        if len(self.probabilities) not in (0, 4):
            raise ParameterError("privacy.probabilities: four numbers, [p1, p2, p3, p4], or none")
        if self.mix and (self.probabilities or abs(sum(self.mix.values()) - 1) > 1e-6):
            raise ParameterError("privacy.mix: shares of clients that sum to 1, and no privacy.probabilities")
        _ = self.index_privacy

    @property
    def index_privacy(self) -> IndexPrivacy:
        """The choice of clients; where they are a mix, that of the least private of them."""
        if self.mix:
            chosen = (PRESETS[name] for name, share in self.mix.items() if share)
            return max(chosen, key=lambda one: one.epsilon_infinity)
        if self.probabilities:
            return IndexPrivacy(*self.probabilities)
        return PRESETS["cpp2" if self.preset == "auto" else self.preset]

    def of_cohort(self, clients: int) -> Self:
        """Return the same, with a choice in the place of "auto" for cohorts of so many clients."""
        if self.preset != "auto":
            return self
        return msgspec.structs.replace(self, preset="cpp5" if clients < SMALL_COHORT else "cpp2")

    @property
    def name(self) -> str:
        if self.mix:
            return " + ".join(f"{share:.0%} {preset}" for preset, share in self.mix.items())
        return "custom" if self.probabilities else "cpp2" if self.preset == "auto" else self.preset


@explained
class HotSettings(Checked, frozen=True):
    """Of the scheme "hot".

    surveys: Rounds, before all others, in which clients mark rows that they have, under noise; rows that many
        have are hot, and trained together. "auto": until all clients were asked once, but no more than a
        fifth of run.rounds.
    marks: Rows that a client marks at the most, a choice at random if it has more.
    survey_share: Share of the privacy budget that surveys take.
    megabytes: What a client downloads and uploads in a round at the most, in MiB: so many rows are hot.
    precision: Of downloaded rows.
    bins: Of the score histograms, which noise covers too; 0 leaves them out.
    clip: Norm to which a client's update is cut in the first round; it then follows the clients' updates. As
        noise grows with it, too little is better than too much.
    """

    surveys: Annotated[int, Meta(ge=1, le=1000)] | Literal["auto"] = "auto"
    marks: Annotated[int, Meta(ge=1, le=2**24)] = 256
    survey_share: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    megabytes: Annotated[float, Meta(gt=0, le=1024)] = 1.5
    precision: Literal["float32", "float16"] = "float16"
    bins: Annotated[int, Meta(ge=0, le=4096)] = 32
    clip: Positive = 0.1


@explained
class RoundSettings(Checked, frozen=True):
    """One round of the protocol.

    scheme: "sfsl": the paper's private submodels, whose exact sums can be linked to their owners. "hot": rows
        that many have are trained together under differential privacy, all others stay at home. To compare
        with: "sfl", the full model under secure sums; "fsl" and "fl", submodels of real rows and the full
        model, nothing hidden; "centralized", everyone's samples in one place.
    sums: "masked" runs the protocol; "plain" adds the same integers in the open, for fast experiments with
        the same result. "auto": masked where the scheme hides anything.
    clients: Clients of a cohort, 2 to 512; with the scheme "hot" up to 10,000.
    cohorts: Of so many clients each, side by side in one round: each has keys, a union and sums of its own,
        and what they open is averaged together.
    min_contributors: Rows asked for by fewer clients are left out by everyone. "auto" computes what keeps the
        rows opened alone below 0.05 per round; 1 is the paper.
    threshold: Clients that must last through a round. "auto" is a little over two thirds.
    encoding: How index sets are encoded for the union.
    precision: Of downloaded rows; float16 halves them and loses some.
    ring: Words of the secure sum, of 32 or 64 bits.
    clip: A parameter's change by one client is cut to plus or minus this.
    max_samples: A client weighs at most so many samples in an average.
    max_rows: A client declines a round in which it would ask for more rows.
    bins: Of the score histograms behind the secure AUC; 0 leaves it out.
    """

    scheme: Scheme = "sfsl"
    sums: Literal["auto", "masked", "plain"] = "auto"
    clients: Annotated[int, Meta(ge=2, le=MOST_CLIENTS)] = 100
    cohorts: Annotated[int, Meta(ge=1, le=4096)] = 1
    min_contributors: Annotated[int, Meta(ge=1, le=65_535)] | Literal["auto"] = "auto"
    threshold: Annotated[int, Meta(ge=2, le=MOST_CLIENTS)] | Literal["auto"] = "auto"
    encoding: Literal["auto", "identity", "bloom", "sketch"] = "auto"
    precision: Literal["float32", "float16"] = "float32"
    ring: Literal["z32", "z64"] = "z32"
    clip: Positive = 1.0
    max_samples: Annotated[int, Meta(ge=1, le=2**20)] = 1000
    max_rows: Annotated[int, Meta(ge=1, le=2**32)] = 2**32
    bins: Annotated[int, Meta(ge=0, le=4096)] = 256

    def require_sound(self) -> None:
        if self.scheme != "hot" and self.clients > MAX_COMPLETE:
            raise ParameterError(
                f"round.clients = {self.clients}: a cohort has at most {MAX_COMPLETE} clients; raise "
                'round.cohorts, or take round.scheme = "hot"'
            )
        if self.cohorts > 1 and self.scheme == "hot":
            raise ParameterError(
                f"round.cohorts = {self.cohorts}: rounds over hot rows have one cohort; raise round.clients"
            )
        if self.cohorts > 1 and self.scheme == "centralized":
            raise ParameterError(
                f'round.cohorts = {self.cohorts} with round.scheme = "centralized", which has no clients'
            )
        if self.sums == "masked" and self.scheme not in SECURE:
            raise ParameterError(
                f'round.sums = "masked" with round.scheme = "{self.scheme}", which hides nothing; '
                f"{' and '.join(SECURE)} have masks"
            )

    @property
    def masked(self) -> bool:
        return self.scheme in SECURE and self.sums != "plain"

    @property
    def stands_in(self) -> bool:
        """Whether plain sums stand in for masked ones: the same model, and costs that say nothing."""
        return self.scheme in SECURE and not self.masked

    @property
    def all_clients(self) -> int:
        """The clients of all cohorts of a round."""
        return self.clients * self.cohorts

    @property
    def threshold_clients(self) -> int:
        if self.threshold != "auto":
            return self.threshold
        large = self.clients > MAX_COMPLETE
        return default_graph(self.clients).survivors if large else default_threshold(self.clients)


@explained
class TrainingSettings(Checked, frozen=True):
    """What a client does with its submodel.

    batch_size: Samples per local step.
    epochs: Passes over a client's samples in a round.
    learning_rate: Of local SGD in the first round.
    decay: The learning rate is multiplied by this every round.
    clip: Largest norm of a step's gradient, over what moves in it.
    max_samples: Most samples of a client in a round, drawn afresh in each; 0 sets no limit.
    rebuild: Share of a client's samples on which its personal rows are rebuilt first, from zero and with the
        model frozen; the other samples then train the rest. At 0 (the paper) personal rows are kept from
        round to round and trained along with the rest.
    rebuild_rate: Learning rate of the steps that rebuild; it does not decay.
    rebuild_epochs: Passes over the samples that rebuild.
    compiled: Make machine code of a cohort's step: more than twice as fast, once half a minute was spent on
        it (many minutes for dien). Needs a C++ compiler, or a GPU.
    """

    batch_size: Annotated[int, Meta(ge=1)] = 16
    epochs: Annotated[int, Meta(ge=1)] = 1
    learning_rate: Positive = 0.2
    decay: Annotated[float, Meta(gt=0, le=1)] = 1.0
    clip: Positive = 1.0
    max_samples: Annotated[int, Meta(ge=0)] = 256
    rebuild: Annotated[float, Meta(ge=0, lt=1)] = 0.3
    rebuild_rate: Positive = 0.5
    rebuild_epochs: Annotated[int, Meta(ge=1)] = 5
    compiled: bool = False


@explained
class ServerSettings(Checked, frozen=True):
    """What the server makes of the sums.

    weights: A row's average counts each client that trained it once ("owners"), or by its "samples" that
        touch the row, or every client by the size of its "dataset". "auto": dataset for the full model; for
        submodels owners, and samples in exact sums over clicks beside which items were drawn, which a
        simulation sees in its data and a server is told.
    row_samples: Where rows weigh by samples, a client weighs at most so many on one. "auto": with heat 2,
        else round.max_samples.
    kappa: Least divisor of a row's average; 1 (with samples) is the paper.
    kappa_rounds: Over so many first rounds that divisor rises from 1 to kappa.
    max_move: Longest move of a row in one round; 0 sets no limit. "auto": where rows of submodels, or hot
        rows, move by heat, what one honest client can make a row move, so that a lying one cannot do more; no
        limit elsewhere.
    row_step: How rows move: "heat" weighs how many clients trained a row: rows of many move fast, rows of few
        with care, whatever the size of local moves; "add" (the paper), "adagrad" and "adam" move by averages.
    row_rate: Learning rate of the row step; with heat the most that a number of a row moves in a round.
        "auto": 0.2; 0.45 for words, for models of your own, over hot rows and where rows do not move by heat.
    row_halving: After so many rounds rows move half as far, after twice as many a third as far; 0: always
        as far. "auto": 0; with heat for words, for models of your own and over hot rows the rounds of two
        passes over all clients, where their number is known.
    row_prior: With heat: from about so many clients on, in all rounds together, a row moves at the full rate.
        "auto": 3; 20 for words, for models of your own and over hot rows.
    row_pull: With heat: over each pass a row that moves is drawn back to zero as if so many owners said so
        for each unit that it has come, by one owner a round at the most; what few say again and again is not
        learned by heart then. "auto": 100; 0 where rows weigh by samples, for words, for models of your own,
        over hot rows and where nobody knows how many clients there are.
    row_pull_rounds: The rounds of a pass. The pull begins after the first and is whole after the second.
        "auto": those over all clients, where their number is known; else 0, by which every round is a pass,
        and a row_pull of more than a few always one owner a round.
    dense_step: How the dense part moves: "add", "adagrad" or "adam".
    dense_rate: Learning rate of the dense step. "auto": with adam 0.0003, for models of your own and over hot
        rows 0.001, for words 0.01; 0.03 with adagrad; where it adds, 2 if clients have submodels, else 1.
    """

    weights: Literal["auto", "owners", "samples", "dataset"] = "auto"
    row_samples: Annotated[int, Meta(ge=1, le=2**20)] | Literal["auto"] = "auto"
    kappa: Annotated[float, Meta(ge=1, le=1e6)] = 10.0
    kappa_rounds: Annotated[int, Meta(ge=0, le=10**7)] = 110
    max_move: Annotated[float, Meta(ge=0, le=1e6)] | Literal["auto"] = "auto"
    row_step: RowStep = "heat"
    row_rate: Positive | Literal["auto"] = "auto"
    row_halving: Annotated[int, Meta(ge=0, le=10**9)] | Literal["auto"] = "auto"
    row_prior: Positive | Literal["auto"] = "auto"
    row_pull: Annotated[float, Meta(ge=0, le=1e6)] | Literal["auto"] = "auto"
    row_pull_rounds: Annotated[int, Meta(ge=0, le=10**9)] | Literal["auto"] = "auto"
    dense_step: Step = "adam"
    dense_rate: Positive | Literal["auto"] = "auto"


@explained
class CentralizedSettings(Checked, frozen=True):
    """Of the scheme "centralized".

    optimizer: "sgd", clipped as clients do, or "adam".
    batch_size: Samples per step.
    learning_rate: In the first round; training.decay applies.
    """

    optimizer: Literal["sgd", "adam"] = "adam"
    batch_size: Annotated[int, Meta(ge=1)] = 32
    learning_rate: Positive = 0.001


@explained
class FaultSettings(Checked, frozen=True, rename="kebab"):
    """Clients that vanish, as shares of those asked.

    invitation: Share of clients that vanishes instead of sharing keys.
    inbound: Share that vanishes instead of sending its masked set.
    unmask_union: Share that vanishes instead of helping to open the union.
    union: Share that vanishes instead of asking for rows.
    submodel: Share that vanishes instead of sending its update.
    unmask_update: Share that vanishes instead of helping to open the sum of updates.
    late: Share of clients that answer any one exchange too late, and are out from then on.
    """

    invitation: Share = 0.0
    inbound: Share = 0.0
    unmask_union: Share = 0.0
    union: Share = 0.0
    submodel: Share = 0.0
    unmask_update: Share = 0.0
    late: Share = 0.0

    @property
    def rates(self) -> dict[str, float]:
        """The shares that vanish by exchange, where anyone does."""
        found = msgspec.to_builtins(self)
        return {exchange: rate for exchange, rate in found.items() if rate and exchange != "late"}

    @property
    def lost(self) -> dict[str, float]:
        """The shares that vanish or are too late, by exchange."""
        found = msgspec.to_builtins(self)
        late = found.pop("late")
        return {exchange: 1 - (1 - rate) * (1 - late) for exchange, rate in found.items() if rate or late}


@explained
class LoopSettings(Checked, frozen=True):
    """The run as a whole.

    rounds: How many rounds.
    evaluate_every: Rounds between evaluations on validation devices and on the central test set, and after
        the last; 0: never.
    keep: Which figure on validation devices (data.validation) says which model is the best so far, which is
        kept beside the last and exported: "log_loss" or "auc". Without chances of clicks it is the AUC.
    patience: Stop when no evaluation was better for so many rounds; 0: never.
    selection: Who is in a round: "uniform" draws from all clients each time; "period" from those who have not
        been in one yet in this period, as a deployment should.
    period: With selection = "period": its rounds, after which clients draw their permanent answers anew.
    seed: Of data, model, cohorts, faults and what devices do by chance. Keys and masks have none.
    threads: CPU threads of one local step, which is small; 0 lets torch choose.
    together: Clients that train in one pass. Another number gives other last bits of the model. On a cluster
        a pass is what one worker does: fewer clients spread wider, more are faster in one place.
    engine: "local": all clients in this process. "ray": spread over a cluster, see [ray]; the same model, bit
        for bit.
    device: "cuda" or "cpu": the whole fleet lives on this device, which makes rounds fast: plain sums of
        clicks data, without faults and secure AUC. Empty: the local engine, which does everything.
    track: Trackers that are told of every round: "tensorboard" (in the run's folder), "mlflow" and "wandb"
        (where their own variables say, such as MLFLOW_TRACKING_URI and WANDB_PROJECT). One that fails ends
        nothing.
    """

    rounds: Annotated[int, Meta(ge=1, le=10**7)] = 100
    evaluate_every: Annotated[int, Meta(ge=0)] = 10
    keep: Literal["log_loss", "auc"] = "log_loss"
    patience: Annotated[int, Meta(ge=0, le=10**7)] = 0
    selection: Literal["uniform", "period"] = "uniform"
    period: Annotated[int, Meta(ge=0, le=10**7)] = 0
    seed: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    threads: Annotated[int, Meta(ge=0, le=1024)] = 1
    together: Annotated[int, Meta(ge=1, le=512)] = 50
    engine: Literal["local", "ray"] = "local"
    device: Literal["", "cpu", "cuda"] = ""
    track: tuple[Tracker, ...] = ()


@explained
class RaySettings(Checked, frozen=True):
    """Of run.engine = "ray".

    address: Of a running cluster, host:port or "auto" for the one on this machine. Empty: RAY_ADDRESS if it
        is set, else a cluster is started here and stopped at the end.
    workers: Processes among which clients are divided; 0: as many as there is room and work for.
    cpus_per_worker: Cores of one worker; 0: as many as run.threads, at least one.
    gpus_per_worker: A share below 1 is a GPU that several workers use. "auto" divides those of the cluster
        among the workers. On a GPU last bits differ from a CPU's; 0 leaves them alone.
    seconds: A worker that takes longer for one exchange is lost, and its clients for the round.
    memory_mb: Of a cluster that is started here: memory for data and messages under way, in MB.
    """

    address: str = ""
    workers: Annotated[int, Meta(ge=0, le=4096)] = 0
    cpus_per_worker: Annotated[int, Meta(ge=0, le=1024)] = 0
    gpus_per_worker: Annotated[float, Meta(ge=0, le=64)] | Literal["auto"] = "auto"
    seconds: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    memory_mb: Annotated[int, Meta(ge=80, le=10**7)] = 500


@explained
class RunConfig(Checked, frozen=True):
    """A run file: its sections and what is in them."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    privacy: PrivacySettings = PrivacySettings()
    round: RoundSettings = RoundSettings()
    training: TrainingSettings = TrainingSettings()
    server: ServerSettings = ServerSettings()
    centralized: CentralizedSettings = CentralizedSettings()
    faults: FaultSettings = FaultSettings()
    run: LoopSettings = LoopSettings()
    ray: RaySettings = RaySettings()
    hot: HotSettings = HotSettings()

    def require_sound(self) -> None:
        if (self.data.source == "synthetic") != (self.data.path == ""):
            raise ParameterError(
                f"data.source = {self.data.source!r} with data.path = {self.data.path!r}: synthetic data has "
                "no path, and every other source needs one"
            )
        if (self.data.columns or self.data.label) and self.data.source not in TABLES:
            raise ParameterError(
                f'data.columns and data.label are for tables, and data.source = "{self.data.source}" has a '
                "form of its own; leave them out"
            )
        if self.data.source not in ("python", "catalogue") and (self.data.source == "shakespeare") != (
            self.model.kind == "lstm"
        ):
            raise ParameterError(
                f'model.kind = "{self.model.kind}" with data.source = "{self.data.source}": "lstm" guesses '
                'words and needs "shakespeare", every other model needs clicks'
            )
        if (self.run.selection == "period") != (self.run.period > 0):
            raise ParameterError(
                f'run.selection = "{self.run.selection}" with run.period = {self.run.period}: "period" needs '
                'the number of rounds in a period, and "uniform" has none (0)'
            )
        clients, least, wanted = self.round.clients, self.round.min_contributors, self.round.threshold_clients
        there = f"but a round has {clients} clients (round.clients)"
        if least != "auto" and least > clients:
            raise ParameterError(f"round.min_contributors = {least}, {there}: no row could ever move")
        if wanted > clients:
            raise ParameterError(f"round.threshold = {wanted}, {there}")
        if 2 * wanted <= clients:
            raise ParameterError(
                f"round.threshold = {wanted} of {clients} clients: more than half must last, or two halves "
                'could open two different sums; "auto" is a safe choice'
            )
        if self.run.patience and not (self.data.validation and self.run.evaluate_every):
            raise ParameterError(
                f"run.patience = {self.run.patience} with data.validation = {self.data.validation:g} and "
                f"run.evaluate_every = {self.run.evaluate_every}: what is not measured cannot stop a run; "
                "raise them, or leave patience at 0"
            )
        if self.run.device:
            self._require_device()
        if self.run.engine == "ray":
            self._require_cluster()

    @property
    def not_on_a_device(self) -> list[str]:
        """Settings that a fleet on a device cannot follow yet."""
        lacking = {
            "round.sums": self.round.masked,
            "round.scheme": self.round.scheme == "centralized",
            "round.encoding": self.round.encoding == "bloom",
            "round.max_rows": self.round.max_rows < 2**32,
            "round.cohorts": self.round.cohorts > 1,
            "round.precision": self.round.precision != "float32",
            "privacy.mix": bool(self.privacy.mix),
            "faults": bool(self.faults.lost),
            "data.source": self.data.source in ("python", "shakespeare", "catalogue"),
            "server.weights": self.weights == "dataset" and self.round.scheme not in ("fl", "sfl"),
        }
        return [key for key, is_wrong in lacking.items() if is_wrong]

    def _require_device(self) -> None:
        """Refuse what a device cannot do, rather than leave it out."""
        if wrong := self.not_on_a_device:
            raise ParameterError(
                f'run.device = "{self.run.device}" runs plain sums of federated schemes on clicks data, '
                f"without faults; {', '.join(wrong)} asks for something else. Change it (--sums plain), or "
                "leave run.device empty"
            )

    def _require_cluster(self) -> None:
        """Refuse what has no clients of the protocol for workers: it is quick in one process."""
        if self.run.device:
            raise ParameterError(
                f'run.engine = "ray" with run.device = "{self.run.device}", which keeps the fleet on one '
                "device; leave it empty: workers take GPUs by ray.gpus_per_worker"
            )
        if not self.round.masked:
            raise ParameterError(
                f'run.engine = "ray" runs the protocol, and round.scheme = "{self.round.scheme}" with '
                f'round.sums = "{self.round.sums}" has no masks; take run.engine = "local"'
            )
        groups = self.round.cohorts * -(-self.round.clients // self.run.together)
        if self.ray.workers > groups:
            fewer = self.round.all_clients // self.ray.workers
            advice = f"lower run.together to {fewer}, or have" if fewer else "have"
            raise ParameterError(
                f"ray.workers = {self.ray.workers}, but a round is {groups} passes of at most "
                f"{self.run.together} clients (run.together), and a worker does whole ones; {advice} fewer "
                "workers"
            )

    @property
    def dense_rate(self) -> float:
        """The rate of the dense step. Averaging over a cohort makes sums slow, and there are data to go
        faster."""
        if self.server.dense_rate != "auto":
            return self.server.dense_rate
        if self.server.dense_step == "add":
            return 2.0 if self.round.scheme in ("sfsl", "hot", "fsl") else 1.0
        if self.server.dense_step == "adagrad":
            return 0.03
        return 0.01 if self.model.kind == "lstm" else 0.0003 if self.small_steps else 0.001

    @property
    def row_rate(self) -> float:
        if self.server.row_rate != "auto":
            return self.server.row_rate
        return 0.2 if self.small_steps and self.server.row_step == "heat" else 0.45

    @property
    def row_prior(self) -> float:
        if self.server.row_prior != "auto":
            return self.server.row_prior
        return 3.0 if self.small_steps else 20.0

    @property
    def row_pull(self) -> float:
        if self.server.row_pull != "auto":
            return self.server.row_pull
        return 100.0 if self.small_steps and self.weights != "samples" else 0.0

    @property
    def small_steps(self) -> bool:
        """Whether the numbers of decision 29 stand for "auto": for exact sums of clicks and a model of ours,
        whose rows have a way of their own to the score. Elsewhere those of decisions 15 and 18 do."""
        own = self.data.source == "python"
        return self.round.scheme != "hot" and self.model.kind != "lstm" and not own

    @property
    def weights(self) -> Literal["owners", "samples", "dataset"]:
        if self.server.weights != "auto":
            return self.server.weights
        return "dataset" if self.round.scheme in ("sfl", "fl") else "owners"

    @property
    def row_samples(self) -> int:
        """How many of its samples a client weighs on a row at the most, where rows weigh by samples."""
        most, own = self.round.max_samples, self.server.row_samples
        if self.weights != "samples":
            return most
        return min(most, own if own != "auto" else 2 if self.server.row_step == "heat" else most)


def from_sections(sections: Mapping[str, object]) -> RunConfig:
    """Read settings from nested mappings as TOML gives them; what is not there has its default."""
    known = {section.name: type(section.default) for section in msgspec.structs.fields(RunConfig)}
    if unknown := [name for name in sections if name not in known]:
        raise ParameterError(f"there is no section [{unknown[0]}]; there are {', '.join(known)}")
    return RunConfig(**{name: section_from(name, known[name], content) for name, content in sections.items()})
