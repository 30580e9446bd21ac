// SPDX-License-Identifier: Apache-2.0
// Messages on their way to the receives that wait for them, by sender and tag.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "worker_sdk/core/host/host_node.h"

namespace ddprun::host {

// One thread at a time reads what a rank sends: who waits for a message of it, else a thread of the
// inbox. A message that nobody waits for stays with its sender, so that it takes no memory here.
// Only where a receive waits for what comes behind it, it is copied and put aside. Any thread.
class Inbox {
 public:
  static constexpr int kAnyRank = -1;

  // A receive that was asked for. Second owner: whoever waits for it.
  struct Receive {
    // Constant.
    TensorView buffer;
    int source = kAnyRank;
    int tag = 0;

    // Guarded by the inbox' mutex.
    bool is_being_filled = false;
    bool is_done = false;
    int sender = kAnyRank;                 // once it is done
    std::optional<MessageFront> misfit{};  // a message of another size or type came
  };

  // `node` outlives the inbox. `timeout` is for the rest of a message that has begun to come.
  Inbox(HostNode& node, int rank, int size, std::chrono::milliseconds timeout);
  // Receives that are open stay so for ever.
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // The receives of a rank and tag get its messages in the order of these calls. `in_background`:
  // the message is received though nobody waits. Throws Error(kResourceExhausted): no thread.
  std::shared_ptr<Receive> post(const TensorView& buffer, int source, int tag, bool in_background);

  // Returns when the message is in the buffer. Throws Error(kProtocol) where it doesn't fit, and
  // what ends the call; the buffer is the caller's again then.
  void wait(Receive& receive, const Call& call);

  // The buffer is the caller's again. For a receive that nobody will wait() for.
  void withdraw(Receive& receive);

  // Never waits. Also true where nothing can come any more.
  bool is_over(const Receive& receive);
  bool has_open_receives();

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Aside {
    MessageFront front;
    std::vector<std::byte> bytes;
  };
  struct Lane {  // of one sender
    bool has_reader = false;
    std::deque<Aside> aside;
    std::exception_ptr broken;  // nothing comes from it any more
    std::thread thread;
  };

  Lane& lane_of(int rank) { return lanes_[static_cast<std::size_t>(rank)]; }
  void start_thread(int peer);
  void read_in_background(int peer);
  // Reads at most one message of `peer`.
  void read(Lock& lock, int peer, const Call& call);
  void deliver(Lock& lock, int peer, const MessageFront& front, const Call& call);
  std::shared_ptr<Receive> waiting_for(int peer, std::optional<int> tag);
  bool give_aside(Receive& receive, int peer);
  void finish(Receive& receive, int peer, const MessageFront& front, const std::byte* bytes);
  void withdraw(Lock& lock, Receive& receive);

  HostNode& node_;
  const int rank_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, but for the threads, which are the posting thread's.
  std::vector<Lane> lanes_;                   // by rank
  std::list<std::shared_ptr<Receive>> open_;  // in the order of post()
  bool is_closing_ = false;
};

}  // namespace ddprun::host
