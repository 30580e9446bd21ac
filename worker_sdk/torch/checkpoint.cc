// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/random_id.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/durable_file.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

using namespace torch_adapter;

namespace {

// Returns safetensors' name of the dtype.
std::string scalar_name(at::ScalarType dtype) {
  constexpr std::pair<at::ScalarType, const char*> kNames[] = {
      {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"},  {at::kBFloat16, "BF16"},
      {at::kLong, "I64"},   {at::kInt, "I32"},   {at::kShort, "I16"}, {at::kChar, "I8"},
      {at::kByte, "U8"},    {at::kBool, "BOOL"}};
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  throw_error(ErrorCode::kUnsupported, "a checkpoint can't hold tensors of dtype ",
              c10::toString(dtype));
}

// Describes `tensor` as in a file, without its bytes.
TensorBytes outline(const NamedTensor& each) {
  return {.name = each.name,
          .dtype = scalar_name(each.tensor.scalar_type()),
          .shape = each.tensor.sizes().vec(),
          .bytes = {}};
}

std::string tensor_text(const TensorBytes& tensor) {
  return concat(tensor.dtype, " ", at::IntArrayRef(tensor.shape));
}

using ByName = std::map<std::string_view, const TensorBytes*>;

ByName by_name(const std::vector<TensorBytes>& tensors) {
  ByName found;
  for (const TensorBytes& each : tensors) found[each.name] = &each;
  return found;
}

// Starts the names of a rank's own tensors in a file.
constexpr std::string_view kOwn = "own:";

bool is_own(std::string_view name) { return name.starts_with(kOwn); }

// Throws Error(kInvalidArgument) if a file of these could not be written, or not be read again.
void check_savable(const Metadata& metadata, const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& each : tensors) names.push_back(each.name);
  std::string problem = encoding_problem(metadata, names);
  for (const NamedTensor& each : tensors) {
    if (!problem.empty()) break;
    if (!each.tensor.defined())
      problem = concat("the tensor ", each.name, " is undefined");
    else if (each.tensor.layout() != c10::kStrided)
      problem = concat("the tensor ", each.name, " is sparse: give a dense one");
  }
  if (!problem.empty()) throw_invalid("a checkpoint: ", problem);
}

// The same for replicated tensors. Some keys and names are reserved for the checkpoint itself.
void check_replicated(const Metadata& metadata, const std::vector<NamedTensor>& tensors) {
  check_savable(metadata, tensors);
  const auto refuse = [](const std::string& what) {
    throw_invalid("a checkpoint: ", what, " is its own");
  };
  for (const char* key : {"shards", "save"}) {
    if (metadata.count(key) > 0) refuse(concat("the key ", key, " of the metadata"));
  }
  for (const NamedTensor& each : tensors) {
    if (is_own(each.name)) refuse(concat("the name ", each.name, ", for what begins with ", kOwn));
  }
}

// Returns the tensors that rank `rank` of `size` writes: all ranks write about as many bytes.
std::vector<NamedTensor> share_of(const std::vector<NamedTensor>& tensors, int rank, int size) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(size), 0);
  std::vector<NamedTensor> share;
  for (const NamedTensor& each : tensors) {
    const auto lightest = std::ranges::min_element(bytes);
    *lightest += each.tensor.nbytes();
    if (lightest - bytes.begin() == rank) share.push_back(each);
  }
  return share;
}

// Returns one rank's own tensors under the names that they have in its shard.
std::vector<NamedTensor> with_own_names(const std::vector<NamedTensor>& own) {
  std::vector<NamedTensor> named;
  for (const NamedTensor& each : own) named.push_back({concat(kOwn, each.name), each.tensor});
  return named;
}

// A file's tensors: the replicated ones, and one rank's own, by their original names.
struct SavedTensors {
  std::vector<TensorBytes> replicated, own;
};
SavedTensors divide(const std::vector<TensorBytes>& tensors) {
  SavedTensors saved;
  for (const TensorBytes& each : tensors) {
    if (!is_own(each.name)) {
      saved.replicated.push_back(each);
      continue;
    }
    saved.own.push_back(each);
    saved.own.back().name.erase(0, kOwn.size());
  }
  return saved;
}

// Returns which tensor's name, dtype or shape differs between `there` and `here`, and how; empty:
// none does.
std::string first_difference(const std::vector<TensorBytes>& there,
                             const std::vector<NamedTensor>& here) {
  ByName left = by_name(there);
  for (const NamedTensor& each : here) {
    const TensorBytes mine = outline(each);
    const auto found = left.find(mine.name);
    if (found == left.end()) return concat("it has no ", mine.name);
    const TensorBytes& saved = *found->second;
    if (saved.dtype != mine.dtype || saved.shape != mine.shape) {
      return concat(mine.name, " is ", tensor_text(saved), " there, ", tensor_text(mine), " here");
    }
    left.erase(found);
  }
  return left.empty() ? "" : concat(left.begin()->first, " is none of this model's");
}

// Copies the tensors of `there` into `here`, on any device. There is no first_difference().
void copy_into(const std::vector<NamedTensor>& here, const std::vector<TensorBytes>& there) {
  const c10::NoGradGuard no_grad;
  const ByName saved = by_name(there);
  for (const auto& [name, tensor] : here) {
    const TensorBytes& from = *saved.at(name);
    const auto options = at::TensorOptions().dtype(tensor.scalar_type());
    const at::Tensor on_host = at::empty(from.shape, options);
    // The bytes are copied first, for they need not be aligned in the file.
    std::memcpy(on_host.mutable_data_ptr(), from.bytes.data(), from.bytes.size());
    tensor.copy_(on_host);
  }
}

// Host memory for copies of tensors, kept from one save to the next. New memory costs a page fault
// for each 4 KiB, more than the copy.
class HostCopies {
 public:
  // Copies `tensors`, contiguous. The result is valid until the next take(). Throws
  // Error(kUnsupported): a dtype that safetensors hasn't; c10::Error: no memory.
  std::vector<TensorBytes> take(const std::vector<NamedTensor>& tensors) {
    const c10::NoGradGuard no_grad;
    std::vector<TensorBytes> views;
    copies_.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor source = tensors[i].tensor.detach();
      at::Tensor& copy = copies_[i];
      if (!copy.defined() || copy.sizes() != source.sizes() || copy.dtype() != source.dtype()) {
        copy = at::empty(
            source.sizes(),
            at::TensorOptions().dtype(source.scalar_type()).pinned_memory(source.is_cuda()));
      }
      if (source.is_cpu() && source.is_contiguous()) {
        // LibTorch's threads aren't used: on busy cores each synchronisation of them costs a time
        // slice.
        std::memcpy(copy.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
      } else {
        copy.copy_(source);
      }
      views.push_back(outline(tensors[i]));
      views.back().bytes = {static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()};
    }
    return views;
  }

 private:
  std::vector<at::Tensor> copies_;  // by place in the list
};

constexpr std::size_t kNumSaveDigits = 8;

// Rank 0 sends this about a checkpoint to all ranks. Its text has the step, the number of its
// shards and their save, one line each, and the metadata as a file's header.
struct Notice {
  std::uint64_t step = 0;
  int num_shards = 0;  // 0: no shards
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

// The outcome of an act on one rank, as text. It is kResult and the result; or kError, the code as
// a character from '0' on (so none is a zero byte), and the message.
constexpr char kResult = 'R', kError = 'E';
constexpr char kFirstCode = '0';
constexpr std::size_t kMostErrorBytes = 1024;
constexpr char kAllCall[] =
    "a checkpoint was saved or loaded: all ranks call its save() and load()";

std::string encode_error(ErrorCode code, const std::string& what) {
  return concat(kError, static_cast<char>(kFirstCode + static_cast<int>(code)), what);
}

std::string outcome_of(const std::function<std::string()>& act) {
  try {
    return kResult + act();
  } catch (const Error& error) {
    return encode_error(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return encode_error(ErrorCode::kResourceExhausted, "out of memory for a checkpoint");
  } catch (const c10::Error& error) {  // its what() contains a stack trace
    return encode_error(ErrorCode::kSystem,
                        concat("a checkpoint: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {  // for example from the file system
    return encode_error(ErrorCode::kSystem, concat("a checkpoint: ", error.what()));
  }
}

// Returns the result, or throws the error.
std::string result_of(const std::string& outcome) {
  if (outcome.front() == kResult) return outcome.substr(1);
  throw Error(static_cast<ErrorCode>(outcome.at(1) - kFirstCode), outcome.substr(2));
}

}  // namespace

class Checkpoint::Impl {
 public:
  Impl(const CheckpointOptions& options, Communicator& communicator, c10::Device device)
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

  std::optional<SavedState> load(const std::vector<NamedTensor>& tensors, const Accept& accept,
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

  void save(std::uint64_t step, const Metadata& metadata, const std::vector<NamedTensor>& tensors,
            const std::vector<NamedTensor>& own) {
    if (last_step_ == step) return;
    last_step_.reset();  // so that after an error it can be saved again
    // The step may still be under way on the GPU, and the abort of a communicator ends it with
    // garbage (docs/nccl.md). A barrier after it succeeds only if nothing has failed.
    if (device_.is_cuda()) communicator_.barrier();
    if (sharded_) {
      save_shards(step, metadata, tensors, own);
    } else {
      on_every_rank([&] {
        if (own.empty()) return;
        throw_invalid("tensors of each rank alone need CheckpointOptions::sharded");
      });
      save_whole(step, metadata, tensors);
    }
    last_step_ = step;
  }

  void finish() {
    const auto step = std::exchange(last_step_, std::nullopt);
    if (sharded_) {
      settle();
    } else {
      on_rank_zero_alone([&] { writer_.wait(); });
    }
    last_step_ = step;
  }

  const std::string& path() const { return path_; }

 private:
  struct Uncommitted {
    ShardPlace place;
    Metadata metadata;
  };

  // Calls `act` on rank 0 only. Every rank returns what it returned, or throws what it threw.
  std::string on_rank_zero(const std::function<std::string()>& act) {
    std::string outcome;
    if (communicator_.rank() == 0) outcome = outcome_of(act);
    if (communicator_.size() > 1) {
      say_what_for(kAllCall, [&] { broadcast_bytes(outcome, 0, communicator_, device_); });
    }
    return result_of(outcome);
  }

  void on_rank_zero_alone(const std::function<void()>& act) {
    on_rank_zero([&] {
      act();
      return std::string();
    });
  }

  // Calls `act` on every rank. Every rank throws the error of the first rank that has one, with its
  // message cut to 1 KiB.
  void on_every_rank(const std::function<void()>& act) {
    const std::string mine = outcome_of([&] {
      act();
      return std::string();
    });
    std::vector<std::string> all{mine};
    if (communicator_.size() > 1) {
      say_what_for(kAllCall,
                   [&] { all = gather_texts(mine, kMostErrorBytes, communicator_, device_); });
    }
    for (const std::string& each : all) result_of(each);
  }

  // Called on rank 0. Returns a Notice; empty: there is no checkpoint.
  std::string read_newest(const std::vector<NamedTensor>& tensors, const Accept& accept) {
    check_replicated({}, tensors);
    const std::unique_ptr<LoadedCheckpoint> loaded = directory_->newest();
    if (!loaded) return "";
    const auto refuse = [&](const std::string& why) {
      throw_invalid("can't go on from ", loaded->path, ": ", why,
                    "; give what it was trained with, or another checkpoint directory");
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

  // Returns true if on every rank `own` hold what it saved; false: nothing was changed on any rank.
  bool load_own(const std::string& shard_path, const std::vector<NamedTensor>& own) {
    std::string bytes;
    std::vector<TensorBytes> saved;
    bool fits = false;
    on_every_rank([&] {
      bytes = read_whole(shard_path);
      saved = divide(decode_safetensors(bytes).tensors).own;
      fits = first_difference(saved, own).empty();
    });
    const std::vector<std::uint8_t> all = gather_bytes(fits, communicator_, device_);
    if (std::ranges::count(all, 1) != communicator_.size()) return false;
    on_every_rank([&] { copy_into(own, saved); });
    return true;
  }

  void write(std::function<void()> task) {
    if (async_) {
      writer_.start(std::move(task));
    } else {
      task();
    }
  }

  void save_whole(std::uint64_t step, const Metadata& metadata,
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

  void save_shards(std::uint64_t step, const Metadata& metadata,
                   const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& own) {
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
        directory_->commit(place, metadata);  // only the last rank's call completes it
      });
    });
    uncommitted_.emplace(Uncommitted{place, notice.metadata});
    if (rank == 0) path_ = directory_->path_of(step);
    if (!async_) settle();
  }

  // Returns when all shards are on disk and valid. A network file system may have hidden the
  // others' shards from the last writer. A shard that is still not visible now is not in rank 0's
  // directory.
  void settle() {
    const std::optional<Uncommitted> last = std::exchange(uncommitted_, std::nullopt);
    on_every_rank([&] { writer_.wait(); });
    if (!last) return;
    on_rank_zero_alone([&] {
      if (directory_->commit(last->place, last->metadata)) return;
      throw_invalid("not all shards of step ", last->place.step, " are in ", directory_->path(),
                    ": a sharded checkpoint needs a directory that all hosts see");
    });
  }

  // Constant after construction.
  Communicator& communicator_;
  const c10::Device device_;
  const bool async_, sharded_;
  std::unique_ptr<CheckpointDirectory> directory_;  // not sharded: rank 0 only

  std::optional<std::uint64_t> last_step_;  // the step of the file at path_
  std::string path_;
  std::optional<Uncommitted> uncommitted_;  // the save that was begun last; sharded only
  HostCopies copies_;                       // used by the writer while it writes
  WriterThread writer_;
};

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
