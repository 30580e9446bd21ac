// SPDX-License-Identifier: Apache-2.0
#include "apps/train/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <system_error>
#include <utility>

#include "common/completion.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/parse_problems.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "worker_sdk/core/mesh.h"

namespace ddprun::train {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& why) {
  throw CLI::ValidationError(flag, why);
}

// Refuses "nan" and "inf": they are numbers to CLI11, and "nan" passes every range. An empty text
// means no error.
std::string check_finite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is not a finite number";
}

std::string check_positive(const std::string& text) {
  return std::strtod(text.c_str(), nullptr) > 0 ? "" : text + " is not a number above 0";
}

std::string check_not_negative(const std::string& text) {
  return std::strtod(text.c_str(), nullptr) >= 0 ? "" : text + " is not a number of 0 or more";
}

// Refuses what CLI11 would turn into the largest number: -1, and every larger number.
std::string check_seed(const std::string& text) {
  if (parsed_number<std::uint64_t>(text)) return "";
  return text + " is not a whole number from 0 to 2^64 - 1";
}

// Refuses "--data= --json=x", which an unset variable in a script causes: CLI11 would take
// "--json=x" for the directory.
void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--") || !word.ends_with('=')) continue;
    refuse(std::string(word.substr(0, word.size() - 1)), "the value after = is empty");
  }
}

// Returns the message of `parse`'s Error; empty: it throws none.
template <typename Parse>
std::string error_of(const Parse& parse) {
  try {
    parse();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string check_compression(const std::string& text) {
  return error_of([&] { parse_compression(text); });
}

const std::map<std::string, OptimizerChoice> kOptimizers = {
    {"adadelta", OptimizerChoice::kAdadelta},
    {"sgd", OptimizerChoice::kSgd},
    {"adam", OptimizerChoice::kAdam},
    {"adamw", OptimizerChoice::kAdamW}};
const std::map<std::string, ScheduleChoice> kSchedules = {
    {"exponential", ScheduleChoice::kExponential},
    {"cosine", ScheduleChoice::kCosine},
    {"constant", ScheduleChoice::kConstant}};

const std::map<std::string, UnevenInputs> kUnevenInputs = {
    {"pad", UnevenInputs::kPad}, {"drop", UnevenInputs::kDrop}, {"join", UnevenInputs::kJoin}};

const std::map<std::string, AmpChoice> kAmps = {
    {"off", AmpChoice::kOff}, {"fp16", AmpChoice::kFp16}, {"bf16", AmpChoice::kBf16}};

const std::map<std::string, ModeChoice> kModes = {
    {"ddp", ModeChoice::kDdp}, {"async", ModeChoice::kAsync}, {"dp", ModeChoice::kDp}};

// Refuses options that don't go with parameters or buffers that each rank keeps for itself.
void check_own_tensors(const Options& options) {
  const bool ignores = !options.ignore_parameters.empty();
  if (ignores && options.clip_norm > 0) {
    refuse("--clip-norm",
           "not with --ignore-parameters: each rank's gradients would have a "
           "norm of their own, and the averaged ones were clipped differently");
  }
  const bool saves = !options.checkpoint_dir.empty();
  if (saves && !options.checkpoint_sharded && (ignores || !options.broadcast_buffers)) {
    refuse(ignores ? "--ignore-parameters" : "--no-broadcast-buffers",
           "with --checkpoint-dir give --checkpoint-sharded, too: every rank "
           "saves what is its own");
  }
}

std::string check_layout(const std::string& text) {
  return error_of([&] { MeshLayout::parse(text, layout_axes()); });
}

// Refuses options that don't work with a net of which each rank has a part.
void check_parallel(const Options& options) {
  if (options.parallel.empty()) return;
  const std::pair<const char*, bool> others[] = {
      {"--clip-norm", options.clip_norm > 0},
      {"--zero", options.zero != ZeroStage::kOff},
      {"--amp", options.amp != AmpChoice::kOff},
      {"--compress", options.compression.kind != Compression::Kind::kNone},
      {"--uneven-inputs=join", options.uneven_inputs == UnevenInputs::kJoin},
      {"--find-unused-parameters", options.find_unused_parameters},
      {"--static-graph", options.static_graph},
      {"--ignore-parameters", !options.ignore_parameters.empty()},
      {"--batch-norm", options.batch_norm},
      {"--mode=dp", options.mode == ModeChoice::kDp},
      {"--mode=async or --sync-every", has_local_steps(options)}};
  for (const auto& [flag, is_given] : others) {
    if (is_given) refuse("--parallel", concat("not with ", flag));
  }
}

// Refuses --pipeline for a layout without stages.
void check_pipeline(const Options& options) {
  const bool has_stages =
      !options.parallel.empty() &&
      MeshLayout::parse(options.parallel, layout_axes()).size_of(kPipelineAxis) > 1;
  if (has_stages) return;
  refuse("--pipeline", "needs a --parallel that has stages, as pp2");
}

// Refuses options that need every rank's whole averages, or a step of some ranks alone.
void check_zero(const Options& options) {
  if (options.zero == ZeroStage::kOff) return;
  const auto check = [](bool is_set, const char* what) {
    if (is_set) refuse("--zero", what);
  };
  check(options.optimizer == OptimizerChoice::kAdadelta,
        "is not for adadelta, whose state every rank has: give --optimizer=sgd, adam or adamw");
  check(options.compression.kind != Compression::Kind::kNone, "not with --compress");
  check(options.find_unused_parameters, "not with --find-unused-parameters");
  check(options.static_graph, "not with --static-graph");
  check(!options.ignore_parameters.empty(), "not with --ignore-parameters");
  check(options.uneven_inputs == UnevenInputs::kJoin,
        "not with --uneven-inputs=join: use pad or drop");
}

template <typename Choice>
const char* name_of(const std::map<std::string, Choice>& names, Choice choice) {
  for (const auto& [name, each] : names) {
    if (each == choice) return name.c_str();
  }
  return "?";
}

double default_lr(OptimizerChoice optimizer) {
  switch (optimizer) {
    case OptimizerChoice::kAdadelta:
      return 1;
    case OptimizerChoice::kSgd:
      return 0.05;
    default:
      return 1e-3;
  }
}

// The flags about the optimiser. settle() checks them together after parsing.
class OptimizerFlags {
 public:
  OptimizerFlags(CLI::App& app, Options& options) : options_(options) {
    app.add_option("--optimizer", optimizer_, "How parameters are updated")
        ->check(CLI::IsMember(kOptimizers));
    lr_ = number(app, "--lr", options.lr,
                 "Learning rate, the highest (default: adadelta 1, sgd 0.05, adam, adamw 0.001)")
              ->check(check_positive, "")
              ->default_str("");
    momentum_ =
        number(app, "--momentum", options.momentum, "Momentum of sgd")->check(CLI::Range(0.0, 1.0));
    weight_decay_ =
        number(app, "--weight-decay", options.weight_decay,
               "Decay of weights, not of biases (sgd, adam, adamw; default: adamw 0.01, else 0)")
            ->check(check_not_negative, "")
            ->default_str("");
    number(app, "--clip-norm", options.clip_norm, "Scale gradients down to this norm (0: never)")
        ->check(check_not_negative, "");
    app.add_option("--zero", zero_,
                   "Divide among the ranks: the optimiser's state (1), gradients, too (2)")
        ->check(CLI::Range(0, 2));
    app.add_option("--schedule", schedule_, "How the learning rate falls")
        ->check(CLI::IsMember(kSchedules));
    gamma_ = number(app, "--gamma", options.gamma,
                    "exponential: factor on the learning rate after each epoch")
                 ->check(check_positive, "");
    app.add_option("--amp", amp_, "Mixed precision: what forward computes in")
        ->check(CLI::IsMember(kAmps));
    app.add_option("--warmup-steps", options.warmup_steps,
                   "Steps in which the learning rate rises from a third")
        ->check(CLI::Range(0, 1'000'000'000));
  }

  void settle() {
    options_.optimizer = kOptimizers.at(optimizer_);
    options_.schedule = kSchedules.at(schedule_);
    options_.zero = static_cast<ZeroStage>(zero_);
    options_.amp = kAmps.at(amp_);
    if (*momentum_ && options_.optimizer != OptimizerChoice::kSgd) {
      refuse("--momentum", "is sgd's: give --optimizer=sgd, too");
    }
    if (*weight_decay_ && options_.optimizer == OptimizerChoice::kAdadelta) {
      refuse("--weight-decay", "is not for adadelta: give another --optimizer");
    }
    if (*gamma_ && options_.schedule != ScheduleChoice::kExponential) {
      refuse("--gamma", "is for --schedule=exponential only");
    }
    if (!*lr_) options_.lr = default_lr(options_.optimizer);
    if (!*weight_decay_ && options_.optimizer == OptimizerChoice::kAdamW)
      options_.weight_decay = 0.01;
  }

 private:
  static CLI::Option* number(CLI::App& app, const char* name, double& value, const char* text) {
    return app.add_option(name, value, text)->check(check_finite, "");
  }

  Options& options_;
  std::string optimizer_ = to_string(options_.optimizer);
  int zero_ = static_cast<int>(options_.zero);
  std::string schedule_ = to_string(options_.schedule);
  std::string amp_ = to_string(options_.amp);
  CLI::Option *lr_, *momentum_, *weight_decay_, *gamma_;
};

// The flags about how the ranks' work becomes one model: --mode, --replicas, --sync-…, --staleness.
class ModeFlags {
 public:
  ModeFlags(CLI::App& app, Options& options)
      : options_(options), mode_(name_of(kModes, options.mode)) {
    app.add_option("--mode", mode_,
                   "Ranks in step (ddp), asynchronous (async), or threads of one process (dp)")
        ->check(CLI::IsMember(kModes));
    replicas_ = app.add_option("--replicas", options.replicas,
                               "dp: replicas of the model (0: one for each GPU)")
                    ->type_name("N")
                    ->check(CLI::Range(0, 1024));
    sync_every_ = app.add_option("--sync-every", options.sync_every,
                                 "Each rank steps alone; models are averaged every so many steps")
                      ->type_name("STEPS")
                      ->check(CLI::Range(1, 1'000'000));
    sync_after_ = app.add_option("--sync-after", options.sync_after,
                                 "So many steps before that are in step (post-local SGD)")
                      ->type_name("STEPS")
                      ->check(CLI::Range(0, 1'000'000'000));
    sync_optimizer_ = app.add_flag("--sync-optimizer", options.sync_optimizer,
                                   "The optimiser's state is averaged each time, too");
    staleness_ = app.add_option("--staleness", options.staleness,
                                "async: steps that a rank may be ahead of the slowest")
                     ->type_name("STEPS")
                     ->check(CLI::Range(0, 1'000'000));
  }

  // Call it after parsing, when all other options are set. Throws CLI::ValidationError for flags
  // that don't go together.
  void settle() {
    options_.mode = kModes.at(mode_);
    const bool is_async = options_.mode == ModeChoice::kAsync;
    if (*replicas_ && options_.mode != ModeChoice::kDp) refuse("--replicas", "is for --mode=dp");
    if (*staleness_ && !is_async) refuse("--staleness", "is for --mode=async");
    if (is_async && (*sync_every_ || *sync_after_ || *sync_optimizer_)) {
      refuse("--mode=async",
             "not with --sync-every, --sync-after or --sync-optimizer: "
             "parameters are exchanged after each step");
    }
    if ((*sync_after_ || *sync_optimizer_) && options_.sync_every <= 1) {
      refuse(*sync_after_ ? "--sync-after" : "--sync-optimizer", "needs --sync-every of 2 or more");
    }
    if (!has_local_steps(options_)) return;
    check_alone();
    if (is_async && options_.checkpoint_every > 0) {
      refuse("--checkpoint-every",
             "not with --mode=async: the ranks' models are one at the end of "
             "each epoch only, and saved then");
    }
    if (is_async) return;
    for (const auto& [flag, steps] : {std::pair("--checkpoint-every", options_.checkpoint_every),
                                      std::pair("--sync-after", options_.sync_after)}) {
      if (steps % options_.sync_every == 0) continue;
      refuse(flag, concat(steps, " is no multiple of --sync-every=", options_.sync_every));
    }
  }

 private:
  // Refuses flags whose effect needs all ranks in each step.
  void check_alone() const {
    const char* flag = options_.mode == ModeChoice::kAsync ? "--mode=async" : "--sync-every";
    const auto alone = [&](const std::string& other, const char* why) {
      refuse(flag, concat("not with ", other, ": ", why));
    };
    if (options_.uneven_inputs == UnevenInputs::kJoin) {
      alone("--uneven-inputs=join", "each rank steps alone; pad or drop");
    }
    if (options_.zero != ZeroStage::kOff) alone("--zero", "no gradients are averaged");
    if (options_.compression.kind != Compression::Kind::kNone) {
      alone("--compress", "no gradients are sent");
    }
    if (options_.find_unused_parameters || options_.static_graph) {
      alone(options_.static_graph ? "--static-graph" : "--find-unused-parameters",
            "no gradients are averaged");
    }
    if (!options_.ignore_parameters.empty() || !options_.broadcast_buffers) {
      alone(options_.broadcast_buffers ? "--ignore-parameters" : "--no-broadcast-buffers",
            "all of the model is averaged");
    }
    if (options_.amp == AmpChoice::kFp16) {
      alone("--amp=fp16", "its scale is agreed on in each step; --amp=bf16 has none");
    }
  }

  Options& options_;
  std::string mode_;
  CLI::Option *replicas_, *sync_every_, *sync_after_, *sync_optimizer_, *staleness_;
};

}  // namespace

const char* to_string(OptimizerChoice choice) { return name_of(kOptimizers, choice); }
const char* to_string(ScheduleChoice choice) { return name_of(kSchedules, choice); }
const char* to_string(UnevenInputs choice) { return name_of(kUnevenInputs, choice); }
const char* to_string(AmpChoice choice) { return name_of(kAmps, choice); }
const char* to_string(ModeChoice choice) { return name_of(kModes, choice); }

const std::vector<std::string>& layout_axes() {
  static const std::vector<std::string> axes{kPipelineAxis, kDataAxis, kTensorAxis};
  return axes;
}

std::optional<Options> parse_options(int argc, char** argv, int& exit_status) {
  Options options;
  std::string backend = to_string(options.backend);
  std::string uneven_inputs = to_string(options.uneven_inputs);
  std::string compression = to_string(options.compression);
  CLI::App app(
      "Trains PyTorch's MNIST example net on MNIST-format images, data-parallel.\n"
      "Under a launcher: ddprun --nproc_per_node=2 train; alone it trains as one process.",
      "train");
  app.option_defaults()->always_capture_default();
  app.failure_message([](const CLI::App* parsed, const CLI::Error& error) {
    const std::string end = " (train --help lists all)\n";
    return concat(
        "train: ",
        listed(parse_problems<CLI::ExtrasError>(*parsed, error, *parsed), end + "train: "), end);
  });
  app.add_option("--data", options.data_dir,
                 "Directory with MNIST's four files, gzipped or plain (default: shipped digits)")
      ->type_name("DIR")
      ->default_str("");
  app.add_option("--epochs", options.num_epochs, "Passes over the training images")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch-size", options.batch_size, "Images per step, shared by all ranks")
      ->check(CLI::Range(1, 1'000'000));
  CLI::Option* accumulate =
      app.add_option("--accumulate", options.accumulate,
                     "Forwards and backwards per step, each of a part of the rank's images")
          ->check(CLI::Range(1, 1'000'000));
  app.add_option("--parallel", options.parallel,
                 "Lay the ranks out: pipeline stages, images, features, as in pp2xtp2 or dp4")
      ->type_name("LAYOUT")
      ->check(check_layout, "")
      ->default_str("");
  std::string pipeline = to_string(options.pipeline);
  CLI::Option* pipeline_flag =
      app.add_option("--pipeline", pipeline, "In which order the stages of --parallel work")
          ->check(CLI::IsMember({"1f1b", "gpipe"}));
  app.add_option("--uneven-inputs", uneven_inputs,
                 "Where the ranks don't divide the images: see some twice, drop some, or join")
      ->check(CLI::IsMember(kUnevenInputs));
  CLI::Option* find_unused =
      app.add_flag("--find-unused-parameters", options.find_unused_parameters,
                   "Look in each step which parameters the loss depends on");
  app.add_flag("--static-graph", options.static_graph,
               "Take it from the first step which parameters the loss depends on")
      ->excludes(find_unused);
  app.add_option("--ignore-parameters", options.ignore_parameters,
                 "Parameters that each rank has for itself: neither sent nor averaged")
      ->type_name("NAME[,NAME...]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  bool own_buffers = !options.broadcast_buffers;
  app.add_flag("--no-broadcast-buffers", own_buffers,
               "Each rank keeps its own buffers: rank 0's aren't sent before each forward");
  app.add_flag("--batch-norm", options.batch_norm,
               "Batch normalization after each convolution: the net has buffers then");
  OptimizerFlags optimizer_flags(app, options);
  ModeFlags mode_flags(app, options);
  app.add_option("--seed", options.seed, "Seed of weights, order of images and dropout")
      ->check(check_seed, "");
  app.add_option("--threads", options.num_threads,
                 "Compute threads per rank (0: OMP_NUM_THREADS, else cores / ranks on this node)")
      ->check(CLI::Range(0, 4096));
  app.add_option("--backend", backend, "Where gradients are averaged")
      ->check(CLI::IsMember({"auto", "host", "nccl"}));
  double operation_seconds = std::chrono::duration<double>(options.operation_timeout).count();
  app.add_option("--operation-timeout", operation_seconds,
                 "Seconds that an operation of all ranks may take; then the job is broken off")
      ->type_name("SECONDS")
      ->check(check_finite, "")
      ->check(CLI::Range(0.1, 1e6));
  app.add_option("--compress", compression, concat("How gradients travel: ", kCompressionForms))
      ->check(check_compression, "");
  CLI::Option* checkpoint_dir =
      app.add_option("--checkpoint-dir", options.checkpoint_dir,
                     "Save here after each epoch and when asked to leave; go on from the newest")
          ->type_name("DIR")
          ->default_str("");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Save after every so many steps, too (0: no)")
      ->type_name("STEPS")
      ->check(CLI::Range(0, 1'000'000'000))
      ->needs(checkpoint_dir);
  app.add_option("--checkpoint-keep", options.checkpoint_keep, "Keep the newest so many")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(checkpoint_dir);
  app.add_option("--snapshot-every", options.snapshot_every,
                 "With ddprun --recovery=inplace: a snapshot in memory after every so many steps "
                 "(0: none; the job restarts)")
      ->type_name("STEPS")
      ->check(CLI::Range(0, 1'000'000'000));
  app.add_option("--checkpoint-async", options.checkpoint_async,
                 "Write while the training goes on (yes, no)")
      ->type_name("yes|no")
      ->default_str("yes")
      ->needs(checkpoint_dir);
  app.add_flag("--checkpoint-sharded", options.checkpoint_sharded,
               "Every rank writes a part, to a directory that all hosts see")
      ->needs(checkpoint_dir);
  app.add_option("--loader-threads", options.loader_threads,
                 "Threads per rank that make batches ahead (0: the training makes them itself)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  app.add_option_function<int>(
         "--loader-delay-ms",
         [&options](int milliseconds) {
           options.loader_delay = std::chrono::milliseconds(milliseconds);
         },
         "Each batch takes so much longer to make: shows what a slow loader costs")
      ->type_name("MS")
      ->default_str("0")
      ->check(CLI::Range(0, 60'000));
  app.add_option("--json", options.json_file, "Rank 0 writes a summary here")
      ->type_name("FILE")
      ->default_str("");
  std::string shell;
  add_completion(app, shell);
  try {
    refuse_empty_values(argc, argv);
    app.parse(argc, argv);
    if (!shell.empty()) {
      std::cout << completion_script(completed_program(app), shell);
      exit_status = static_cast<int>(ExitCode::kOk);
      return std::nullopt;
    }
    optimizer_flags.settle();
    if (options.amp == AmpChoice::kFp16 && uneven_inputs == "join") {
      refuse("--amp",
             "fp16 needs all ranks in each step, --uneven-inputs=join "
             "lets some run out: use --amp=bf16, or pad");
    }
    options.uneven_inputs = kUnevenInputs.at(uneven_inputs);
    options.compression = parse_compression(compression);
    options.broadcast_buffers = !own_buffers;
    check_own_tensors(options);
    check_zero(options);
    mode_flags.settle();
    check_parallel(options);
    if (*pipeline_flag) check_pipeline(options);
    options.pipeline = parse_pipeline_kind(pipeline);
    if (*accumulate) options.num_micro_batches = options.accumulate;
  } catch (const CLI::ParseError& error) {
    exit_status =
        app.exit(error) == 0 ? static_cast<int>(ExitCode::kOk) : static_cast<int>(ExitCode::kUsage);
    return std::nullopt;
  }
  options.backend = *parse_backend_choice(backend);
  options.operation_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(std::round(operation_seconds * 1e3)));
  return options;
}

std::string shipped_data_dir() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path installed = fs::path(own_folder()).parent_path() / "share/ddprun/digits";
  for (const fs::path& candidate : {installed, fs::path(DDPRUN_SOURCE_DIGITS_DIR)}) {
    if (fs::is_directory(candidate, ignored)) return candidate.string();
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the shipped digits are neither in " + installed.string() + " nor in " +
                  DDPRUN_SOURCE_DIGITS_DIR + ": give --data DIR with MNIST's four files");
}

OwnTensors::OwnTensors(const Options& options, const std::vector<std::string>& buffers)
    : names_(options.ignore_parameters) {
  if (!options.broadcast_buffers) names_.insert(names_.end(), buffers.begin(), buffers.end());
}

bool OwnTensors::has(std::string_view name) const {
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& own) {
    return name == own || name.find("." + own + ".") != name.npos;
  });
}

}  // namespace ddprun::train
