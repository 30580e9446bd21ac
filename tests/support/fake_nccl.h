// SPDX-License-Identifier: Apache-2.0
// NCCL without a GPU, and stricter. Ranks are threads of this process. Collectives really reduce
// (host) memory on fake streams. Calls that NCCL forbids are refused and counted instead of
// hanging.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/fake_cuda.h"
#include "worker_sdk/core/nccl/nccl_api.h"

namespace ddprun::test {

// Works like the real, blocking NCCL. init and splits return when every rank has called them.
// Collectives return when they are on the stream, where they wait for every rank. An id is good for
// one communicator. A communicator takes one thread at a time, an abort included. An abort ends
// the operations under way, with rubbish in their buffers. Both `abort` and `destroy` wait for
// the graphs that have operations of the communicator. Tests set the faults. Any thread may call.
class FakeNccl : public nccl::NcclApi {
 public:
  explicit FakeNccl(std::shared_ptr<FakeCuda> cuda) : cuda_(std::move(cuda)) {}
  ~FakeNccl() override;

  // ---- Faults, and values for tests ----

  // The next call of `function` on this rank returns `result` and does nothing else.
  void fail_next(int rank, const std::string& function, nccl::Result result);
  // From now on comm_async_error returns this on every communicator of this rank.
  void inject_async_error(int rank, nccl::Result error);
  // The next call of `function` on this rank blocks until release_hangs(). Then it does its work.
  // get_unique_id counts as a call of rank 0.
  void hang_next(int rank, const std::string& function);
  // Ends the hanging calls. inits and splits that wait for a rank fail, also later ones.
  void release_hangs();
  int num_hanging() const;  // calls that hang, also those that wait for a rank
  // comm_abort blocks until release_aborts().
  void hang_aborts();
  void release_aborts();
  void set_has_mem_alloc(bool has);
  void set_has_init_rank_scalable(bool has);
  void set_config_version(int version) { config_version_ = version; }  // must come before any call
  // The ranks' nodes: rank r is on node r / `ranks_per_node`. It must come before any call. At
  // first all ranks are on one node. `network_reduces`: as a network with SHARP does.
  void set_nodes(int ranks_per_node, bool network_reduces);
  NcclConfig config_of(int rank) const;  // the config of this rank's last communicator

  // The number of violations: two threads in one communicator, a freed communicator that is used,
  // freed memory that an operation uses. Also two threads that launch on one device, if launches
  // are ordered.
  int num_violations() const;
  int num_live_comms() const;
  int num_live_buffers() const;  // buffers of mem_alloc
  // Counts the living communicators no more: they were left behind on purpose.
  void forget_live_comms();
  void forget_live_buffers();
  int num_registered() const;
  int num_aborts() const;
  int num_ids() const;              // calls of get_unique_id
  int num_running(int rank) const;  // operations that are on streams
  // Returns the operations so far for which NCCL can't use NVLS: "all_reduce average float32 on 2
  // nodes", "broadcast of uint8 on 1 nodes". Sizes and hardware are not looked at.
  std::set<std::string> without_nvls() const;

  // ---- NcclApi ----
  int version() override { return 22809; }
  std::string library() override { return "fake"; }
  nccl::Result get_unique_id(nccl::UniqueId* id) override;
  int config_version() override { return config_version_; }
  nccl::Result comm_init_rank(nccl::Comm* comm, int size, const nccl::UniqueId& id, int rank,
                              const NcclConfig& config) override;
  bool has_init_rank_scalable() override;
  nccl::Result comm_init_rank_scalable(nccl::Comm* comm, int size, int rank,
                                       const nccl::UniqueId* ids, int num_ids,
                                       const NcclConfig& config) override;
  nccl::Result comm_split(nccl::Comm comm, int color, int key, nccl::Comm* made) override;
  nccl::Result comm_async_error(nccl::Comm comm, nccl::Result* state) override;
  nccl::Result comm_destroy(nccl::Comm comm) override;
  nccl::Result comm_abort(nccl::Comm comm) override;
  nccl::Result all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                          ReduceOp op, nccl::Comm comm, nccl::Stream stream) override;
  nccl::Result reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                      int root, nccl::Comm comm, nccl::Stream stream) override;
  nccl::Result broadcast(const void* input, void* output, std::size_t count, DType dtype, int root,
                         nccl::Comm comm, nccl::Stream stream) override;
  nccl::Result all_gather(const void* input, void* output, std::size_t input_count, DType dtype,
                          nccl::Comm comm, nccl::Stream stream) override;
  nccl::Result reduce_scatter(const void* input, void* output, std::size_t output_count,
                              DType dtype, ReduceOp op, nccl::Comm comm,
                              nccl::Stream stream) override;
  nccl::Result send(const void* input, std::size_t count, DType dtype, int peer, nccl::Comm comm,
                    nccl::Stream stream) override;
  nccl::Result recv(void* output, std::size_t count, DType dtype, int peer, nccl::Comm comm,
                    nccl::Stream stream) override;
  nccl::Result group_start() override;
  nccl::Result group_end() override;
  bool has_mem_alloc() override;
  nccl::Result mem_alloc(void** data, std::size_t size_bytes) override;
  nccl::Result mem_free(void* data) override;
  nccl::Result comm_register(nccl::Comm comm, void* data, std::size_t size_bytes,
                             void** handle) override;
  nccl::Result comm_deregister(nccl::Comm comm, void* handle) override;
  std::string error_text(nccl::Result result) override;
  std::string last_error(nccl::Comm comm) override;

 private:
  struct Call;       // an operation that one rank asks for
  struct Letter;     // one message
  struct Slot;       // one collective, as its ranks arrive
  struct Group;      // the ranks of one unique id
  struct Rank;       // one ncclComm_t
  struct Split;      // one comm_split, as its ranks arrive
  class Entry;       // a call inside a communicator
  struct OpenGroup;  // the calls of a thread since group_start
  using Lock = std::unique_lock<std::mutex>;

  nccl::Result join(nccl::Comm* comm, int size, const std::string& key, int rank,
                    const NcclConfig& config);
  void finish(const Group& parent, Split& split);
  nccl::Comm make_comm(const std::shared_ptr<Group>& group, int rank);
  nccl::Result ask(const char* function, nccl::Comm comm, nccl::Stream stream, const Call& call);
  // Enqueues the calls as one task of the stream.
  nccl::Result launch(const char* function, nccl::Comm comm, nccl::Stream stream,
                      const std::vector<Call>& calls);
  nccl::Result enqueue(const char* function, nccl::Comm comm, nccl::Stream stream,
                       const std::vector<Call>& calls);
  void begin(Rank& rank, const std::vector<Call>& calls);         // mutex_ held
  void end(Rank& rank, const std::vector<Call>& calls);           // mutex_ held
  bool may_use_nvls(const Group& group, const Call& call) const;  // mutex_ held
  void run(Lock& lock, Rank& rank, const std::vector<Call>& calls);
  void run_collective(Lock& lock, Rank& rank, std::uint64_t seq, const Call& call);
  std::shared_ptr<Letter> post(Rank& rank, const Call& call);
  void receive(Lock& lock, Rank& rank, const Call& call);
  static void compute(const Slot& slot);
  nccl::Result take_fault(int rank, const std::string& function);  // mutex_ held
  // Blocks if a test asked for a hang. False: none did.
  bool hang_if_told(Lock& lock, int rank, const std::string& function);
  // Waits until the other ranks have come. False: release_hangs() was called before.
  bool wait_for_others(Lock& lock, const std::function<bool()>& have_come);
  std::shared_ptr<Rank> find(nccl::Comm comm);  // mutex_ held

  static thread_local OpenGroup open_group_;

  const std::shared_ptr<FakeCuda> cuda_;
  int config_version_ = 22809;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::map<std::string, std::shared_ptr<Group>> groups_;  // by unique id
  std::map<nccl::Comm, std::shared_ptr<Rank>> comms_;
  std::map<std::pair<int, std::string>, nccl::Result> faults_;
  std::set<std::pair<int, std::string>> hangs_;
  bool is_released_ = false;  // whether release_hangs() was called
  int num_hanging_ = 0;
  std::map<int, nccl::Result> async_errors_;
  std::map<int, NcclConfig> configs_;  // by rank
  std::map<void*, std::size_t> buffers_;
  std::set<int> launching_;            // devices on which launches are ordered
  std::multiset<const void*> in_use_;  // memory of operations on streams that have not ended
  std::set<std::string> without_nvls_;
  int ranks_per_node_ = 0;  // 0: all
  bool network_reduces_ = false;
  int num_ids_ = 0;
  int num_violations_ = 0;
  std::multiset<nccl::Comm> registered_;  // once for each registered buffer
  int num_aborts_ = 0;
  bool aborts_hang_ = false;
  bool has_mem_alloc_ = true;
  bool has_scalable_ = true;
};

}  // namespace ddprun::test
