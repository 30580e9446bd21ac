// SPDX-License-Identifier: Apache-2.0
// FakeNccl's faults, set-up and end, memory and texts. The operations are in
// fake_nccl_operations.cc, splits in fake_nccl_split.cc.
#include "tests/support/fake_nccl.h"

#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/fake_nccl_parts.h"

namespace ddprun::test {

using nccl::Comm;
using nccl::Result;
using nccl::UniqueId;

FakeNccl::Entry::Entry(FakeNccl& fake, Comm comm, const char* function) : fake_(fake) {
  Lock lock(fake_.mutex_);
  rank_ = fake_.find(comm);
  if (!rank_ || rank_->busy) {
    ++fake_.num_violations_;
    rank_ = nullptr;
    result_ = Result::kInvalidUsage;
    return;
  }
  rank_->busy = true;
  result_ = fake_.take_fault(rank_->rank, function);
  if (result_ != Result::kSuccess) return;
  if (!fake_.hang_if_told(lock, rank_->rank, function)) {
    // Gives a second thread time to enter, if nothing keeps it out.
    lock.unlock();
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    lock.lock();
  }
}

FakeNccl::Entry::~Entry() {
  Lock lock(fake_.mutex_);
  if (rank_) rank_->busy = false;
  fake_.changed_.notify_all();
}

FakeNccl::~FakeNccl() {
  for (const auto& [data, size_bytes] : buffers_) std::free(data);
}

// ---- Faults and counters ----

void FakeNccl::fail_next(int rank, const std::string& function, Result result) {
  Lock lock(mutex_);
  faults_[{rank, function}] = result;
}

void FakeNccl::inject_async_error(int rank, Result error) {
  Lock lock(mutex_);
  async_errors_[rank] = error;
}

void FakeNccl::hang_next(int rank, const std::string& function) {
  Lock lock(mutex_);
  hangs_.insert({rank, function});
}

void FakeNccl::release_hangs() {
  Lock lock(mutex_);
  is_released_ = true;
  changed_.notify_all();
}

int FakeNccl::num_hanging() const {
  Lock lock(mutex_);
  return num_hanging_;
}

void FakeNccl::hang_aborts() {
  Lock lock(mutex_);
  aborts_hang_ = true;
}

void FakeNccl::release_aborts() {
  Lock lock(mutex_);
  aborts_hang_ = false;
  changed_.notify_all();
}

void FakeNccl::set_has_mem_alloc(bool has) {
  Lock lock(mutex_);
  has_mem_alloc_ = has;
}

void FakeNccl::set_has_init_rank_scalable(bool has) {
  Lock lock(mutex_);
  has_scalable_ = has;
}

int FakeNccl::num_violations() const {
  Lock lock(mutex_);
  return num_violations_;
}

int FakeNccl::num_live_comms() const {
  Lock lock(mutex_);
  return static_cast<int>(comms_.size());
}

int FakeNccl::num_live_buffers() const {
  Lock lock(mutex_);
  return static_cast<int>(buffers_.size());
}

void FakeNccl::forget_live_buffers() {
  Lock lock(mutex_);
  for (const auto& [data, size_bytes] : buffers_) std::free(data);
  buffers_.clear();
}

void FakeNccl::forget_live_comms() {
  Lock lock(mutex_);
  comms_.clear();
  registered_.clear();
}

int FakeNccl::num_registered() const {
  Lock lock(mutex_);
  return static_cast<int>(registered_.size());
}

int FakeNccl::num_aborts() const {
  Lock lock(mutex_);
  return num_aborts_;
}

int FakeNccl::num_ids() const {
  Lock lock(mutex_);
  return num_ids_;
}

std::set<std::string> FakeNccl::without_nvls() const {
  Lock lock(mutex_);
  return without_nvls_;
}

void FakeNccl::set_nodes(int ranks_per_node, bool network_reduces) {
  Lock lock(mutex_);
  ranks_per_node_ = ranks_per_node;
  network_reduces_ = network_reduces;
}

int FakeNccl::num_running(int rank) const {
  Lock lock(mutex_);
  int count = 0;
  for (const auto& [comm, one] : comms_) count += one->rank == rank ? one->num_running : 0;
  return count;
}

Result FakeNccl::take_fault(int rank, const std::string& function) {
  const auto found = faults_.find({rank, function});
  if (found == faults_.end()) return Result::kSuccess;
  const Result result = found->second;
  faults_.erase(found);
  return result;
}

bool FakeNccl::hang_if_told(Lock& lock, int rank, const std::string& function) {
  if (hangs_.erase({rank, function}) == 0) return false;
  wait_for_others(lock, [] { return false; });
  return true;
}

bool FakeNccl::wait_for_others(Lock& lock, const std::function<bool()>& have_come) {
  ++num_hanging_;
  changed_.wait(lock, [&] { return have_come() || is_released_; });
  --num_hanging_;
  changed_.notify_all();
  return have_come();
}

std::shared_ptr<FakeNccl::Rank> FakeNccl::find(Comm comm) {
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second;
}

// ---- Set-up and end ----

Result FakeNccl::get_unique_id(UniqueId* id) {
  Lock lock(mutex_);
  if (const Result fault = take_fault(0, "get_unique_id"); fault != Result::kSuccess) return fault;
  hang_if_told(lock, 0, "get_unique_id");
  const std::string text = "fake unique id " + std::to_string(++num_ids_);
  std::memset(id->bytes, 0, UniqueId::kSizeBytes);
  std::memcpy(id->bytes, text.data(), text.size());
  // nullptr: the id is known, and no communicator uses it yet.
  groups_[std::string(id->bytes, UniqueId::kSizeBytes)] = nullptr;
  return Result::kSuccess;
}

NcclConfig FakeNccl::config_of(int rank) const {
  Lock lock(mutex_);
  return configs_.at(rank);
}

Result FakeNccl::comm_init_rank(Comm* comm, int size, const UniqueId& id, int rank,
                                const NcclConfig& config) {
  return join(comm, size, std::string(id.bytes, UniqueId::kSizeBytes), rank, config);
}

bool FakeNccl::has_init_rank_scalable() {
  Lock lock(mutex_);
  return has_scalable_;
}

Result FakeNccl::comm_init_rank_scalable(Comm* comm, int size, int rank, const UniqueId* ids,
                                         int num_ids, const NcclConfig& config) {
  {
    Lock lock(mutex_);
    for (int i = 0; i < num_ids; ++i) {
      if (groups_.count(std::string(ids[i].bytes, UniqueId::kSizeBytes)) == 0) {
        return Result::kInvalidArgument;
      }
    }
  }
  return join(comm, size, std::string(ids[0].bytes, UniqueId::kSizeBytes), rank, config);
}

Result FakeNccl::join(Comm* comm, int size, const std::string& key, int rank,
                      const NcclConfig& config) {
  Lock lock(mutex_);
  configs_[rank] = config;
  if (const Result fault = take_fault(rank, "comm_init_rank"); fault != Result::kSuccess) {
    *comm = make_comm(std::make_shared<Group>(), rank);  // half made: only comm_abort may take it
    return fault;
  }
  hang_if_told(lock, rank, "comm_init_rank");
  const auto found = groups_.find(key);
  if (found == groups_.end() || rank < 0 || rank >= size) return Result::kInvalidArgument;
  if (!found->second) {
    found->second = std::make_shared<Group>();
    found->second->size = size;
    found->second->joined.resize(static_cast<std::size_t>(size));
    for (int each = 0; each < size; ++each) {
      found->second->nodes.push_back(ranks_per_node_ == 0 ? 0 : each / ranks_per_node_);
    }
  }
  Group& group = *found->second;
  if (group.size != size) return Result::kInvalidArgument;
  // The rank uses the id a second time.
  if (group.joined[static_cast<std::size_t>(rank)]) return Result::kInvalidUsage;
  group.joined[static_cast<std::size_t>(rank)] = true;
  ++group.num_joined;
  changed_.notify_all();
  const auto whole = found->second;
  if (!wait_for_others(lock, [&] { return whole->complete(); })) return Result::kInternalError;
  *comm = make_comm(whole, rank);
  return Result::kSuccess;
}

Comm FakeNccl::make_comm(const std::shared_ptr<Group>& group, int rank) {
  auto made = std::make_shared<Rank>();
  made->group = group;
  made->rank = rank;
  const auto comm = reinterpret_cast<Comm>(made.get());
  comms_[comm] = std::move(made);
  return comm;
}

Result FakeNccl::comm_async_error(Comm comm, Result* state) {
  Entry entry(*this, comm, "comm_async_error");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  const auto injected = async_errors_.find(entry.rank()->rank);
  *state = injected != async_errors_.end() ? injected->second : entry.rank()->group->error;
  return Result::kSuccess;
}

Result FakeNccl::comm_destroy(Comm comm) {
  Entry entry(*this, comm, "comm_destroy");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  changed_.wait(
      lock, [&] { return entry.rank()->num_running == 0 && entry.rank()->num_graph_tasks == 0; });
  comms_.erase(comm);
  return Result::kSuccess;
}

Result FakeNccl::comm_abort(Comm comm) {
  Lock lock(mutex_);
  const auto rank = find(comm);
  if (!rank || rank->busy) {
    ++num_violations_;
    return Result::kInvalidArgument;
  }
  ++num_aborts_;
  rank->busy = true;
  changed_.wait(lock, [this] { return !aborts_hang_; });
  rank->aborted = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return rank->num_graph_tasks == 0; });
  registered_.erase(comm);
  comms_.erase(comm);
  return Result::kSuccess;
}

// ---- Memory and texts ----

bool FakeNccl::has_mem_alloc() {
  Lock lock(mutex_);
  return has_mem_alloc_;
}

Result FakeNccl::mem_alloc(void** data, std::size_t size_bytes) {
  Lock lock(mutex_);
  if (const Result fault = take_fault(0, "mem_alloc"); fault != Result::kSuccess) return fault;
  *data = std::aligned_alloc(256, (size_bytes + 255) / 256 * 256);
  std::memset(*data, 0xCD, size_bytes);
  buffers_[*data] = size_bytes;
  return Result::kSuccess;
}

Result FakeNccl::mem_free(void* data) {
  Lock lock(mutex_);
  const auto found = buffers_.find(data);
  if (found == buffers_.end()) return Result::kInvalidArgument;
  const auto used = in_use_.lower_bound(data);
  if (used != in_use_.end() && *used < static_cast<const char*>(data) + found->second) {
    ++num_violations_;
    return Result::kInvalidUsage;  // the real NCCL unmaps it, which would crash
  }
  buffers_.erase(found);
  std::free(data);
  return Result::kSuccess;
}

Result FakeNccl::comm_register(Comm comm, void* data, std::size_t, void** handle) {
  Entry entry(*this, comm, "comm_register");
  if (!entry.ok()) return entry.result();
  {
    Lock lock(mutex_);
    registered_.insert(comm);
  }
  *handle = data;
  return Result::kSuccess;
}

Result FakeNccl::comm_deregister(Comm comm, void*) {
  Entry entry(*this, comm, "comm_deregister");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  const auto found = registered_.find(comm);
  if (found == registered_.end()) return Result::kInvalidArgument;
  registered_.erase(found);
  return Result::kSuccess;
}

std::string FakeNccl::error_text(Result result) {
  switch (result) {
    case Result::kRemoteError:
      return "remote process exited or there was a network error";
    case Result::kSystemError:
      return "unhandled system error";
    case Result::kInvalidUsage:
      return "invalid usage";
    default:
      return "NCCL error " + std::to_string(static_cast<int>(result));
  }
}

std::string FakeNccl::last_error(Comm) { return "details from the fake"; }

}  // namespace ddprun::test
