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

// For a number of images that the ranks don't divide.
enum class UnevenInputs {
  kPad,   // some are seen twice
  kDrop,  // some are not seen
  kJoin,  // each is seen once; ranks that have run out wait for the others
};
enum class OptimizerChoice : std::uint8_t { kAdadelta, kSgd, kAdam, kAdamW };
enum class AmpChoice : std::uint8_t { kOff, kFp16, kBf16 };
enum class ScheduleChoice : std::uint8_t { kExponential, kCosine, kConstant };
enum class ModeChoice : std::uint8_t {
  kDdp,    // a process per rank, in step (local-sgd.md: every so many steps)
  kAsync,  // a process per rank, bounded staleness (async.md)
  kDp,     // ranks are threads of one process
};

// As the flags have them.
const char* to_string(OptimizerChoice choice);
const char* to_string(ScheduleChoice choice);
const char* to_string(UnevenInputs choice);
const char* to_string(AmpChoice choice);
const char* to_string(ModeChoice choice);

struct Options {
  std::string data_dir;  // with the four MNIST files; empty: the shipped digits
  int num_epochs = 5;
  int batch_size = 64;  // samples per step of all ranks together: the same training on any number
  int accumulate = 1;   // forwards and backwards that each step's samples are divided into
  std::string parallel{};  // layout of the ranks, as "tp2xdp2"; empty: each has the whole net
  // For its stages: micro-batches (1: plain model parallel; 0: the layout's own number) and order.
  int num_micro_batches = 0;
  PipelineKind pipeline = PipelineKind::k1F1B;
  UnevenInputs uneven_inputs = UnevenInputs::kPad;
  bool find_unused_parameters = false;  // DdpOptions'; this net needs neither
  bool static_graph = false;
  std::vector<std::string> ignore_parameters{};  // DdpOptions::ignored: each rank's own
  bool broadcast_buffers = true;                 // DdpOptions'; false: each rank's own, too
  bool batch_norm = false;                       // after each convolution: the net has buffers
  OptimizerChoice optimizer = OptimizerChoice::kAdadelta;
  double lr = 1.0;                   // the highest; default: default_lr() of the optimiser
  double momentum = 0.9;             // sgd's
  double weight_decay = 0;           // sgd's, adam's, adamw's; of weights, not of biases
  double clip_norm = 0;              // gradients are scaled down to this norm; 0: never
  ZeroStage zero = ZeroStage::kOff;  // DdpOptions'; not adadelta's
  ScheduleChoice schedule = ScheduleChoice::kExponential;
  double gamma = 0.7;               // exponential: lr is multiplied by it after each epoch
  AmpChoice amp = AmpChoice::kOff;  // what forward computes in; fp16 with a GradScaler
  std::uint64_t warmup_steps = 0;   // in which lr rises from a third
  std::uint64_t seed = 1;           // the same on all ranks
  int num_threads = 0;  // compute threads per rank; 0: OMP_NUM_THREADS, else cores / local ranks
  BackendChoice backend = BackendChoice::kAuto;
  std::chrono::milliseconds operation_timeout{
      300'000};                        // what each operation of the ranks may take
  Compression compression{};           // of gradients between the ranks
  std::string checkpoint_dir;          // empty: the training can't go on after an interruption
  std::uint64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch only
  std::size_t checkpoint_keep = 2;     // so many are kept
  bool checkpoint_async = true;        // written while the training goes on
  bool checkpoint_sharded = false;     // every rank writes a part
  std::uint64_t snapshot_every = 20;   // steps, in memory, to go on in place; 0: none
  int loader_threads = 0;              // per rank; 0: batches are made on the training thread
  std::chrono::milliseconds loader_delay{0};  // that each batch takes longer to make
  ModeChoice mode = ModeChoice::kDdp;
  int replicas = 0;              // dp: threads; 0: one for each GPU
  std::uint64_t sync_every = 1;  // steps; more than 1: each rank alone between them, then averaged
  std::uint64_t sync_after = 0;  // so many steps before it are in step
  bool sync_optimizer = false;   // its state is averaged with the parameters each time
  std::uint64_t staleness = 4;   // async: steps that a rank may be ahead of the slowest
  std::string json_file;         // where rank 0 writes the summary; empty: nowhere
};

// Whether ranks have models of their own between averagings or exchanges.
inline bool has_local_steps(const Options& options) {
  return options.mode == ModeChoice::kAsync || options.sync_every > 1;
}

// Which tensors of a training each rank has for itself: those of --ignore-parameters, and the
// buffers with --no-broadcast-buffers.
class OwnTensors {
 public:
  // `buffers`: the names of the net's.
  OwnTensors(const Options& options, const std::vector<std::string>& buffers);

  // `name`: a parameter's, a buffer's, or of an optimiser's state "OPTIMISER.PARAMETER.WHAT".
  bool has(std::string_view name) const;

  bool empty() const { return names_.empty(); }

 private:
  std::vector<std::string> names_;
};

// The axes of --parallel: stages of layers, images, features; all of them, outermost first.
inline constexpr char kPipelineAxis[] = "pp", kDataAxis[] = "dp", kTensorAxis[] = "tp";
const std::vector<std::string>& layout_axes();

// nullopt: nothing to do (--help), or wrong usage, which has been printed; the process' exit status
// is then in `exit_status`.
std::optional<Options> parse_options(int argc, char** argv, int& exit_status);

// The directory of the digits that come with ddprun: beside the installed program
// (PREFIX/share/ddprun/digits), else in the source tree that this program was built from. Throws
// Error(kInvalidArgument) where neither is there.
std::string shipped_data_dir();

}  // namespace ddprun::train
