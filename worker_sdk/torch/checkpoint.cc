// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/random_id.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/durable_file.h"
#include "worker_sdk/core/checkpoint/writer_thread.h"
#include "worker_sdk/torch/current_stream.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {
namespace {

// As safetensors has it.
std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw Error(ErrorCode::kUnsupported,
                  concat("a checkpoint can't hold tensors of dtype ", c10::toString(dtype)));
  }
}

// `tensor` as a file describes it; without its bytes.
TensorBytes outline(const NamedTensor& each) {
  return {.name = each.name,
          .dtype = dtype_name(each.tensor.scalar_type()),
          .shape = each.tensor.sizes().vec(),
          .bytes = {}};
}

// Throws Error(kInvalidArgument) where a checkpoint of them could not be written, or not be loaded.
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
  if (!problem.empty()) throw Error(ErrorCode::kInvalidArgument, "a checkpoint: " + problem);
}

std::string describe(const TensorBytes& tensor) {
  return concat(tensor.dtype, " ", at::IntArrayRef(tensor.shape));
}

using ByName = std::map<std::string_view, const TensorBytes*>;

ByName by_name(const std::vector<TensorBytes>& tensors) {
  ByName found;
  for (const TensorBytes& each : tensors) found[each.name] = &each;
  return found;
}

// Which tensor isn't the same there as here, and how; empty: all are alike.
std::string first_difference(ByName there, const std::vector<NamedTensor>& here) {
  for (const NamedTensor& each : here) {
    const TensorBytes mine = outline(each);
    const auto found = there.find(mine.name);
    if (found == there.end()) return concat("it has no ", mine.name);
    const TensorBytes& saved = *found->second;
    if (saved.dtype != mine.dtype || saved.shape != mine.shape) {
      return concat(mine.name, " is ", describe(saved), " there, ", describe(mine), " here");
    }
    there.erase(found);
  }
  return there.empty() ? "" : concat(there.begin()->first, " is none of this model's");
}

void copy_from(const TensorBytes& saved, const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  const at::Tensor on_host = at::empty(saved.shape, options);
  // Not over the file's bytes: they need not be aligned.
  std::memcpy(on_host.mutable_data_ptr(), saved.bytes.data(), saved.bytes.size());
  tensor.copy_(on_host);
}

// What rank 0 came to, for the others.
constexpr char kResult = 'R', kError = 'E';

constexpr std::size_t kMostErrorBytes = 1024;

std::string encode(ErrorCode code, const std::string& what) {
  return concat(kError, static_cast<char>(code), what);
}

// What `act` returns, or its error.
template <typename Act>
std::string outcome_of(Act act) {
  try {
    return kResult + act();
  } catch (const Error& error) {
    return encode(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return encode(ErrorCode::kResourceExhausted, "out of memory for a checkpoint");
  } catch (const c10::Error& error) {  // its what() has a stack
    return encode(ErrorCode::kSystem, concat("a checkpoint: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {  // the file system's
    return encode(ErrorCode::kSystem, concat("a checkpoint: ", error.what()));
  }
}

// In a shard, before the names of a rank's own tensors.
constexpr std::string_view kOwn = "own:";

bool is_own(std::string_view name) { return name.starts_with(kOwn); }

// As check_savable(), of what all ranks have alike; some names are the checkpoint's own.
void check_replicated(const Metadata& metadata, const std::vector<NamedTensor>& tensors) {
  check_savable(metadata, tensors);
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, concat("a checkpoint: ", what, " is its own"));
  };
  for (const char* key : {"shards", "save"}) {
    if (metadata.count(key) > 0) refuse(concat("the key ", key, " of the metadata"));
  }
  for (const NamedTensor& each : tensors) {
    if (is_own(each.name)) refuse(concat("the name ", each.name, ", for what begins with ", kOwn));
  }
}

// Those that rank `rank` writes: all ranks write about as many bytes.
std::vector<NamedTensor> share_of(const std::vector<NamedTensor>& tensors, int rank, int size) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(size), 0);
  std::vector<NamedTensor> share;
  for (const NamedTensor& each : tensors) {
    const auto lightest = std::min_element(bytes.begin(), bytes.end());
    *lightest += each.tensor.nbytes();
    if (lightest - bytes.begin() == rank) share.push_back(each);
  }
  return share;
}

}  // namespace

struct Checkpoint::Uncommitted {
  ShardPlace place;
  Metadata metadata;
};

Checkpoint::Checkpoint(const CheckpointOptions& options, Communicator& communicator,
                       c10::Device device)
    : communicator_(communicator),
      device_(device),
      async_(options.async),
      sharded_(options.sharded),
      writer_(std::make_unique<WriterThread>()) {
  communicator_.follow_stream(current_torch_stream);
  on_rank_zero([&] {
    directory_ = std::make_unique<CheckpointDirectory>(options.directory, options.num_kept);
    return std::string();
  });
  on_every_rank([&] {
    if (directory_) return;
    directory_ = std::make_unique<CheckpointDirectory>(options.directory, options.num_kept,
                                                       CheckpointDirectory::Role::kShardWriter);
  });
}

Checkpoint::~Checkpoint() = default;

// `act` is done on rank 0 alone; every rank returns what it returned, or throws what it threw.
template <typename Act>
std::string Checkpoint::on_rank_zero(Act act) {
  std::string outcome;
  if (communicator_.rank() == 0) outcome = outcome_of(act);
  if (communicator_.size() > 1) {
    torch_adapter::broadcast_bytes(outcome, 0, communicator_, device_);
  }
  if (outcome.front() == kResult) return outcome.substr(1);
  throw Error(static_cast<ErrorCode>(outcome.at(1)), outcome.substr(2));
}

// `act` is done on every rank; every rank throws what the first that has an error threw.
template <typename Act>
void Checkpoint::on_every_rank(Act act) {
  if (!sharded_) return;
  std::string outcome = outcome_of([&] {
    act();
    return std::string();
  });
  std::vector<std::string> all{outcome};
  if (communicator_.size() > 1) {
    // A code is a character that text may end with: as a digit.
    if (outcome.front() == kError) outcome[1] = static_cast<char>('0' + outcome[1]);
    all = torch_adapter::gather_texts(outcome, kMostErrorBytes, communicator_, device_);
    for (std::string& each : all) {
      if (each.front() == kError) each[1] = static_cast<char>(each[1] - '0');
    }
  }
  for (const std::string& each : all) {
    if (each.front() == kError) throw Error(static_cast<ErrorCode>(each.at(1)), each.substr(2));
  }
}

// On rank 0. What the other ranks must know of it: the step, the number of its shards and their
// save, one line each, and the metadata as a file's header. Empty: there is none.
std::string Checkpoint::read_newest(const std::vector<NamedTensor>& tensors, const Accept& accept) {
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
  ByName saved = by_name(loaded->content.tensors);
  std::erase_if(saved, [](const auto& each) { return is_own(each.first); });
  const std::string difference = first_difference(saved, tensors);
  if (!difference.empty()) refuse("it is of another model: " + difference);
  for (const NamedTensor& each : tensors) copy_from(*saved.at(each.name), each.tensor);
  path_ = loaded->path;
  return concat(loaded->step, '\n', loaded->num_shards, '\n', loaded->save, '\n',
                encode_header(loaded->content.metadata, {}));
}

std::optional<SavedState> Checkpoint::load(const std::vector<NamedTensor>& tensors,
                                           const Accept& accept,
                                           const std::vector<NamedTensor>& own) {
  finish();
  const std::string text = on_rank_zero([&] { return read_newest(tensors, accept); });
  if (text.empty()) return std::nullopt;
  std::istringstream lines(text);
  SavedState state;
  ShardPlace place;
  place.rank = communicator_.rank();
  lines >> state.step >> place.size;
  lines.get();
  std::getline(lines, place.save);
  state.metadata =
      decode_safetensors(std::string_view(text).substr(static_cast<std::size_t>(lines.tellg())))
          .metadata;
  std::vector<at::Tensor> all;
  for (const NamedTensor& each : tensors) all.push_back(each.tensor);
  torch_adapter::broadcast_tensors(all, 0, communicator_, device_);
  place.step = state.step;
  state.has_own =
      sharded_ && place.size == communicator_.size() && load_own(directory_->path_of(place), own);
  last_step_ = state.step;
  return state;
}

// True: on every rank `own` hold what it saved; false: nothing was changed on any.
bool Checkpoint::load_own(const std::string& shard_path, const std::vector<NamedTensor>& own) {
  std::string bytes;
  std::vector<TensorBytes> found;
  on_every_rank([&] {
    bytes = read_whole(shard_path);
    for (TensorBytes& each : decode_safetensors(bytes).tensors) {
      if (!is_own(each.name)) continue;
      each.name.erase(0, kOwn.size());
      found.push_back(std::move(each));
    }
  });
  const ByName saved = by_name(found);
  std::vector<std::string> fits{first_difference(saved, own).empty() ? "yes" : "no"};
  if (communicator_.size() > 1) {
    fits = torch_adapter::gather_texts(fits[0], 4, communicator_, device_);
  }
  if (std::count(fits.begin(), fits.end(), "yes") != communicator_.size()) return false;
  for (const NamedTensor& each : own) copy_from(*saved.at(each.name), each.tensor);
  return true;
}

// Views of copies_, which hold what `tensors` are now.
std::vector<TensorBytes> Checkpoint::snapshot(const std::vector<NamedTensor>& tensors) {
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
      // Not LibTorch's threads: on busy cores each of their meetings costs a time slice.
      std::memcpy(copy.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    } else {
      copy.copy_(source);
    }
    views.push_back(outline(tensors[i]));
    views.back().bytes = {static_cast<const char*>(copy.const_data_ptr()), copy.nbytes()};
  }
  return views;
}

void Checkpoint::save(std::uint64_t step, const Metadata& metadata,
                      const std::vector<NamedTensor>& tensors,
                      const std::vector<NamedTensor>& own) {
  if (last_step_ == step) return;
  last_step_.reset();  // after an error it can be saved again
  if (sharded_) {
    save_shard(step, metadata, tensors, own);
    last_step_ = step;
    return;
  }
  if (!own.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "tensors of each rank alone need CheckpointOptions::sharded");
  }
  on_rank_zero([&] {
    writer_->wait();
    check_replicated(metadata, tensors);
    const auto write = [this, step, metadata, views = snapshot(tensors)] {
      directory_->write(step, metadata, views);
    };
    if (async_) {
      writer_->start(write);
    } else {
      write();
    }
    path_ = directory_->path_of(step);
    return std::string();
  });
  last_step_ = step;
}

void Checkpoint::save_shard(std::uint64_t step, const Metadata& metadata,
                            const std::vector<NamedTensor>& tensors,
                            const std::vector<NamedTensor>& own) {
  settle();
  const std::string text = on_rank_zero([&] {
    check_replicated(metadata, tensors);
    constexpr std::size_t kNumSaveDigits = 8;
    return random_id().substr(0, kNumSaveDigits) + encode_header(metadata, {});
  });
  const int rank = communicator_.rank(), size = communicator_.size();
  ShardPlace place{.step = step, .save = text.substr(0, 8), .rank = rank, .size = size};
  Metadata agreed = decode_safetensors(std::string_view(text).substr(8)).metadata;
  on_every_rank([&] {
    std::vector<NamedTensor> mine = share_of(tensors, rank, size);
    for (const NamedTensor& each : own) mine.push_back({concat(kOwn, each.name), each.tensor});
    check_savable({}, mine);
    const auto write = [this, place, agreed, views = snapshot(mine)] {
      directory_->write_shard(place, views);
      directory_->commit(place, agreed);  // the last one does it
    };
    if (async_) {
      writer_->start(write);
    } else {
      write();
    }
  });
  uncommitted_ = std::make_unique<Uncommitted>(Uncommitted{place, std::move(agreed)});
  if (rank == 0) path_ = directory_->path_of(step);
  if (!async_) settle();
}

// All shards are on disk, and count. A network's file system may have hidden the others' shards
// from the last writer; what isn't to be seen now is nowhere that rank 0 looks.
void Checkpoint::settle() {
  if (!sharded_) return;
  const std::unique_ptr<Uncommitted> last = std::move(uncommitted_);
  on_every_rank([&] { writer_->wait(); });
  if (!last) return;
  on_rank_zero([&] {
    if (!directory_->commit(last->place, last->metadata)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("not all shards of step ", last->place.step, " are in ", directory_->path(),
                 ": a sharded checkpoint needs a directory that all hosts see"));
    }
    return std::string();
  });
}

void Checkpoint::finish() {
  const auto step = std::exchange(last_step_, std::nullopt);
  settle();
  if (!sharded_) {
    on_rank_zero([&] {
      writer_->wait();
      return std::string();
    });
  }
  last_step_ = step;
}

}  // namespace ddprun
