// SPDX-License-Identifier: Apache-2.0
// The flags about how the ranks' work becomes one model: --mode, --replicas, --sync-…, --staleness.
#pragma once

#include <string>

#include "examples/train/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ddprun::train {

class ModeFlags {
 public:
  // Both outlive this object.
  ModeFlags(CLI::App& app, Options& options);

  // After parsing, when all other options are set. Throws CLI::ValidationError for flags that don't
  // go together.
  void settle();

 private:
  void check_alone() const;

  Options& options_;
  std::string mode_;
  CLI::Option *replicas_, *sync_every_, *sync_after_, *sync_optimizer_, *staleness_;
};

}  // namespace ddprun::train
