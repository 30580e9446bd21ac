// SPDX-License-Identifier: Apache-2.0
#include "examples/train/mode_flags.h"

#include <CLI/CLI.hpp>

#include <map>

#include "common/log.h"

namespace ddprun::train {
namespace {

const std::map<std::string, ModeChoice> kModes = {
    {"ddp", ModeChoice::kDdp}, {"async", ModeChoice::kAsync}, {"dp", ModeChoice::kDp}};

[[noreturn]] void refuse(const char* flag, const std::string& why) {
  throw CLI::ValidationError(flag, why);
}

}  // namespace

const char* to_string(ModeChoice choice) {
  for (const auto& [name, each] : kModes) {
    if (each == choice) return name.c_str();
  }
  return "?";
}

ModeFlags::ModeFlags(CLI::App& app, Options& options)
    : options_(options), mode_(to_string(options.mode)) {
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

// Of flags whose effect needs all ranks in each step, and --checkpoint-every.
void ModeFlags::check_alone() const {
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

void ModeFlags::settle() {
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

}  // namespace ddprun::train
