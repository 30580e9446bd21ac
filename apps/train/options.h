// SPDX-License-Identifier: Apache-2.0
// The user's options for `train`. Only options.cc knows the flags.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/core/backend_choice.h"
#include "worker_sdk/ddp/hooks/compression.h"
#include "worker_sdk/ddp/zero_stage.h"
#include "worker_sdk/parallel/pipeline_schedule.h"

namespace ddprun::train {

// How to treat a number of images that the ranks can't share equally.
enum class UnevenInputs {
  kPad,   // some images are seen twice
  kDrop,  // some images are not seen
  kJoin,  // each image is seen once; ranks that have run out wait for the others
};
enum class OptimizerChoice : std::uint8_t { kAdadelta, kSgd, kAdam, kAdamW };
enum class AmpChoice : std::uint8_t { kOff, kFp16, kBf16 };
enum class ScheduleChoice : std::uint8_t { kExponential, kCosine, kConstant };
enum class ModeChoice : std::uint8_t {
  kDdp,    // a process per rank, in step, or every --sync-every steps (local-sgd.md)
  kAsync,  // a process per rank, bounded staleness (async.md)
  kDp,     // ranks are threads of one process
};

// Return the flags' words.
const char* to_string(OptimizerChoice choice);
const char* to_string(ScheduleChoice choice);
const char* to_string(UnevenInputs choice);
const char* to_string(AmpChoice choice);
const char* to_string(ModeChoice choice);

struct Options {
  std::string data_dir;  // directory with the four MNIST files; empty: the shipped digits
  int num_epochs = 5;
  int batch_size = 64;     // samples per step of all ranks, so any number of ranks trains alike
  int accumulate = 1;      // forwards and backwards per step, each on a part of its samples
  std::string parallel{};  // layout of the ranks, "tp2xdp2"; empty: each has the whole net
  // For the layout's stages: number of micro-batches (1: plain model parallel; 0: the layout's own
  // number) and their order.
  int num_micro_batches = 0;
  PipelineKind pipeline = PipelineKind::k1F1B;
  UnevenInputs uneven_inputs = UnevenInputs::kPad;
  bool find_unused_parameters = false;  // as in DdpOptions; this net needs neither
  bool static_graph = false;
  std::vector<std::string> ignore_parameters{};  // DdpOptions::ignored, kept per rank
  bool broadcast_buffers = true;                 // as in DdpOptions; false: each rank keeps its own
  bool batch_norm = false;                       // after each convolution: the net has buffers
  OptimizerChoice optimizer = OptimizerChoice::kAdadelta;
  double lr = 1.0;                   // the highest; default: default_lr() of the optimiser
  double momentum = 0.9;             // for sgd
  double weight_decay = 0;           // for sgd, adam, adamw; applies to weights, not to biases
  double clip_norm = 0;              // gradients are scaled down to this norm; 0: never
  ZeroStage zero = ZeroStage::kOff;  // as in DdpOptions; not for adadelta
  ScheduleChoice schedule = ScheduleChoice::kExponential;
  double gamma = 0.7;               // exponential: lr is multiplied by it after each epoch
  AmpChoice amp = AmpChoice::kOff;  // forward's type; fp16 uses a GradScaler
  std::uint64_t warmup_steps = 0;   // steps in which lr rises from a third
  std::uint64_t seed = 1;           // the same on all ranks
  int num_threads = 0;  // compute threads per rank; 0: OMP_NUM_THREADS, else cores / local ranks
  BackendChoice backend = BackendChoice::kAuto;
  std::chrono::milliseconds operation_timeout{300'000};  // limit of each operation of the ranks
  Compression compression{};                             // of gradients between the ranks
  std::string checkpoint_dir;          // empty: the training can't go on after an interruption
  std::uint64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch only
  std::size_t checkpoint_keep = 2;     // how many are kept
  bool checkpoint_async = true;        // files are written while the training goes on
  bool checkpoint_sharded = false;     // every rank writes a part
  std::uint64_t snapshot_every = 20;   // steps between memory snapshots (docs/inplace.md); 0: none
  int loader_threads = 0;              // per rank; 0: batches are made on the training thread
  std::chrono::milliseconds loader_delay{0};  // extra time to make each batch
  ModeChoice mode = ModeChoice::kDdp;
  int replicas = 0;              // dp: threads; 0: one for each GPU
  std::uint64_t sync_every = 1;  // steps between averagings; 1: ranks are in step
  std::uint64_t sync_after = 0;  // first steps that are in step, before sync_every applies
  bool sync_optimizer = false;   // its state is averaged with the parameters
  std::uint64_t staleness = 4;   // async: steps that a rank may be ahead of the slowest
  std::string json_file;         // file for rank 0's summary; empty: none
};

// Returns whether ranks have different models between averagings or exchanges.
inline bool has_local_steps(const Options& options) {
  return options.mode == ModeChoice::kAsync || options.sync_every > 1;
}

// Knows which tensors of a training each rank keeps for itself: those of --ignore-parameters, and
// the buffers with --no-broadcast-buffers.
class OwnTensors {
 public:
  // `buffers` has the names of the net's buffers.
  OwnTensors(const Options& options, const std::vector<std::string>& buffers);

  // `name` is a parameter's, a buffer's, or for an optimiser's state "OPTIMISER.PARAMETER.WHAT".
  bool has(std::string_view name) const;

  bool empty() const { return names_.empty(); }

 private:
  std::vector<std::string> names_;
};

// The axes of --parallel: stages of layers, images, features. layout_axes() has all, outermost
// first.
inline constexpr char kPipelineAxis[] = "pp", kDataAxis[] = "dp", kTensorAxis[] = "tp";
const std::vector<std::string>& layout_axes();

// Returns nullopt if there is nothing to do (--help), or after printing wrong usage. `exit_status`
// is then the process' exit status.
std::optional<Options> parse_options(int argc, char** argv, int& exit_status);

// Returns the directory of ddprun's own digits: beside the installed program
// (PREFIX/share/ddprun/digits), else in the source tree that this program was built from. Throws
// Error(kInvalidArgument) if neither is there.
std::string shipped_data_dir();

}  // namespace ddprun::train
