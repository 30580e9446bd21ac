// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/random_id.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/durable_file.h"
#include "worker_sdk/core/checkpoint/writer_thread.h"
#include "worker_sdk/torch/checkpoint_agreement.h"
#include "worker_sdk/torch/checkpoint_tensors.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

constexpr std::size_t kNumSaveDigits = 8;

// What all ranks must know of a checkpoint, from rank 0: the step, the number of its shards and
// their save, one line each, and the metadata as a file's header.
struct Notice {
  std::uint64_t step = 0;
  int num_shards = 0;  // 0: it has none
  std::string save{};
  Metadata metadata{};
};

std::string encode(const Notice& notice) {
  return concat(notice.step, '\n', notice.num_shards, '\n', notice.save, '\n',
                encode_header(notice.metadata, {}));
}

Notice decode(const std::string& text) {
  Notice notice;
  std::istringstream lines(text);
  lines >> notice.step >> notice.num_shards;
  lines.get();
  std::getline(lines, notice.save);
  const auto header = static_cast<std::size_t>(lines.tellg());
  notice.metadata = decode_safetensors(std::string_view(text).substr(header)).metadata;
  return notice;
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(const CheckpointOptions& options, Communicator& communicator, c10::Device device);

  std::optional<SavedState> load(const std::vector<NamedTensor>& tensors, const Accept& accept,
                                 const std::vector<NamedTensor>& own);
  void save(std::uint64_t step, const Metadata& metadata, const std::vector<NamedTensor>& tensors,
            const std::vector<NamedTensor>& own);
  void finish();
  const std::string& path() const { return path_; }

 private:
  std::string on_rank_zero(const std::function<std::string()>& act);
  void on_rank_zero_alone(const std::function<void()>& act);
  void on_every_rank(const std::function<void()>& act);
  void settle();
  void save_whole(std::uint64_t step, const Metadata& metadata,
                  const std::vector<NamedTensor>& tensors);
  void save_shards(std::uint64_t step, const Metadata& metadata,
                   const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& own);
  bool load_own(const std::string& shard_path, const std::vector<NamedTensor>& own);
  std::string read_newest(const std::vector<NamedTensor>& tensors, const Accept& accept);
  void write(std::function<void()> task);

  // Constant after construction.
  Communicator& communicator_;
  const c10::Device device_;
  const bool async_, sharded_;
  std::unique_ptr<CheckpointDirectory> directory_;  // not sharded: rank 0 only

  std::optional<std::uint64_t> last_step_;  // of the file at path_
  std::string path_;
  struct Uncommitted {
    ShardPlace place;
    Metadata metadata;
  };
  std::optional<Uncommitted> uncommitted_;  // what the last save began; sharded only
  HostCopies copies_;                       // the writer's while it writes
  WriterThread writer_;
};

Checkpoint::Impl::Impl(const CheckpointOptions& options, Communicator& communicator,
                       c10::Device device)
    : communicator_(communicator),
      device_(device),
      async_(options.async),
      sharded_(options.sharded) {
  communicator_.follow_stream(current_torch_stream);
  on_rank_zero_alone([&] {
    directory_ = std::make_unique<CheckpointDirectory>(options.directory, options.num_kept);
  });
  if (!sharded_) return;
  on_every_rank([&] {
    if (directory_) return;
    directory_ = std::make_unique<CheckpointDirectory>(options.directory, options.num_kept,
                                                       CheckpointDirectory::Role::kShardWriter);
  });
}

std::string Checkpoint::Impl::on_rank_zero(const std::function<std::string()>& act) {
  return torch_adapter::on_rank_zero(communicator_, device_, act);
}

void Checkpoint::Impl::on_rank_zero_alone(const std::function<void()>& act) {
  on_rank_zero([&] {
    act();
    return std::string();
  });
}

void Checkpoint::Impl::on_every_rank(const std::function<void()>& act) {
  torch_adapter::on_every_rank(communicator_, device_, act);
}

// On rank 0; a Notice, empty: there is no checkpoint.
std::string Checkpoint::Impl::read_newest(const std::vector<NamedTensor>& tensors,
                                          const Accept& accept) {
  check_replicated({}, tensors);
  const std::unique_ptr<LoadedCheckpoint> loaded = directory_->newest();
  if (!loaded) return "";
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("can't go on from ", loaded->path, ": ", why,
                       "; give what it was trained with, or another checkpoint directory"));
  };
  std::string why;
  try {
    if (accept) why = accept(loaded->step, loaded->content.metadata);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol) throw;
    why = error.what();
  }
  if (!why.empty()) refuse(why);
  const std::vector<TensorBytes> saved = divide(loaded->content.tensors).replicated;
  const std::string difference = first_difference(saved, tensors);
  if (!difference.empty()) refuse("it is of another model: " + difference);
  copy_into(tensors, saved);
  path_ = loaded->path;
  return encode(Notice{.step = loaded->step,
                       .num_shards = loaded->num_shards,
                       .save = loaded->save,
                       .metadata = loaded->content.metadata});
}

std::optional<SavedState> Checkpoint::Impl::load(const std::vector<NamedTensor>& tensors,
                                                 const Accept& accept,
                                                 const std::vector<NamedTensor>& own) {
  finish();
  const std::string text = on_rank_zero([&] { return read_newest(tensors, accept); });
  if (text.empty()) return std::nullopt;
  Notice notice = decode(text);
  std::vector<at::Tensor> all;
  for (const NamedTensor& each : tensors) all.push_back(each.tensor);
  broadcast_tensors(all, 0, communicator_, device_);
  SavedState state{.step = notice.step, .metadata = std::move(notice.metadata)};
  const ShardPlace place{.step = notice.step,
                         .save = notice.save,
                         .rank = communicator_.rank(),
                         .size = notice.num_shards};
  state.has_own =
      sharded_ && place.size == communicator_.size() && load_own(directory_->path_of(place), own);
  last_step_ = state.step;
  return state;
}

// True: on every rank `own` hold what it saved; false: nothing was changed on any.
bool Checkpoint::Impl::load_own(const std::string& shard_path,
                                const std::vector<NamedTensor>& own) {
  std::string bytes;
  std::vector<TensorBytes> saved;
  bool fits = false;
  on_every_rank([&] {
    bytes = read_whole(shard_path);
    saved = divide(decode_safetensors(bytes).tensors).own;
    fits = first_difference(saved, own).empty();
  });
  const std::vector<std::uint8_t> all = gather_bytes(fits, communicator_, device_);
  if (std::count(all.begin(), all.end(), 1) != communicator_.size()) return false;
  on_every_rank([&] { copy_into(own, saved); });
  return true;
}

void Checkpoint::Impl::write(std::function<void()> task) {
  if (async_) {
    writer_.start(std::move(task));
  } else {
    task();
  }
}

void Checkpoint::Impl::save(std::uint64_t step, const Metadata& metadata,
                            const std::vector<NamedTensor>& tensors,
                            const std::vector<NamedTensor>& own) {
  if (last_step_ == step) return;
  last_step_.reset();  // after an error it can be saved again
  // The step may still be under way on the GPU, and the abort of a communicator lets it pass with
  // rubbish (docs/nccl.md). A barrier behind it ends well only where nothing has failed.
  if (device_.is_cuda()) communicator_.barrier();
  if (sharded_) {
    save_shards(step, metadata, tensors, own);
  } else {
    on_every_rank([&] {
      if (own.empty()) return;
      throw Error(ErrorCode::kInvalidArgument,
                  "tensors of each rank alone need CheckpointOptions::sharded");
    });
    save_whole(step, metadata, tensors);
  }
  last_step_ = step;
}

void Checkpoint::Impl::save_whole(std::uint64_t step, const Metadata& metadata,
                                  const std::vector<NamedTensor>& tensors) {
  on_rank_zero_alone([&] {
    writer_.wait();
    check_replicated(metadata, tensors);
    write([this, step, metadata, views = copies_.take(tensors)] {
      directory_->write(step, metadata, views);
    });
    path_ = directory_->path_of(step);
  });
}

void Checkpoint::Impl::save_shards(std::uint64_t step, const Metadata& metadata,
                                   const std::vector<NamedTensor>& tensors,
                                   const std::vector<NamedTensor>& own) {
  settle();
  const int rank = communicator_.rank(), size = communicator_.size();
  const Notice notice = decode(on_rank_zero([&] {
    check_replicated(metadata, tensors);
    return encode(Notice{.step = step,
                         .num_shards = size,
                         .save = random_id().substr(0, kNumSaveDigits),
                         .metadata = metadata});
  }));
  const ShardPlace place{.step = step, .save = notice.save, .rank = rank, .size = size};
  on_every_rank([&] {
    std::vector<NamedTensor> mine = share_of(tensors, rank, size);
    for (NamedTensor& each : with_own_names(own)) mine.push_back(std::move(each));
    check_savable({}, mine);
    write([this, place, metadata = notice.metadata, views = copies_.take(mine)] {
      directory_->write_shard(place, views);
      directory_->commit(place, metadata);  // the last one does it
    });
  });
  uncommitted_.emplace(Uncommitted{place, notice.metadata});
  if (rank == 0) path_ = directory_->path_of(step);
  if (!async_) settle();
}

// All shards are on disk, and count. A network's file system may have hidden the others' shards
// from the last writer; what isn't to be seen now is nowhere that rank 0 looks.
void Checkpoint::Impl::settle() {
  const std::optional<Uncommitted> last = std::exchange(uncommitted_, std::nullopt);
  on_every_rank([&] { writer_.wait(); });
  if (!last) return;
  on_rank_zero_alone([&] {
    if (directory_->commit(last->place, last->metadata)) return;
    throw Error(ErrorCode::kInvalidArgument,
                concat("not all shards of step ", last->place.step, " are in ", directory_->path(),
                       ": a sharded checkpoint needs a directory that all hosts see"));
  });
}

void Checkpoint::Impl::finish() {
  const auto step = std::exchange(last_step_, std::nullopt);
  if (sharded_) {
    settle();
  } else {
    on_rank_zero_alone([&] { writer_.wait(); });
  }
  last_step_ = step;
}

Checkpoint::Checkpoint(const CheckpointOptions& options, Communicator& communicator,
                       c10::Device device)
    : impl_(std::make_unique<Impl>(options, communicator, device)) {}
Checkpoint::~Checkpoint() = default;

std::optional<SavedState> Checkpoint::load(const std::vector<NamedTensor>& tensors,
                                           const Accept& accept,
                                           const std::vector<NamedTensor>& own) {
  return impl_->load(tensors, accept, own);
}
void Checkpoint::save(std::uint64_t step, const Metadata& metadata,
                      const std::vector<NamedTensor>& tensors,
                      const std::vector<NamedTensor>& own) {
  impl_->save(step, metadata, tensors, own);
}
void Checkpoint::finish() { impl_->finish(); }
const std::string& Checkpoint::path() const { return impl_->path(); }

}  // namespace ddprun
