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

// One thread at a time reads what a rank sends: a thread that waits for a message of it, else a
// thread of the inbox. A message that nobody waits for stays with its sender, so it takes no memory
// here. It is copied and put aside only if a receive waits for a message behind it. Any thread.
class Inbox {
 public:
  static constexpr int kAnyRank = -1;

  // A receive that was asked for. Shared with the thread that waits for it.
  struct Receive {
    // Constant.
    TensorView buffer;
    int source = kAnyRank;
    int tag = 0;

    // Guarded by the inbox' mutex.
    bool is_being_filled = false;
    bool is_done = false;
    int sender = kAnyRank;                 // set once it is done
    std::optional<MessageFront> misfit{};  // a message of another size or type came
  };

  // `node` outlives the inbox. `timeout` limits the rest of a message that has begun to come.
  Inbox(HostNode& node, int rank, int size, std::chrono::milliseconds timeout);
  // Open receives never complete afterwards.
  ~Inbox();

  // Adds a receive. The receives of a rank and tag get its messages in the order of these calls.
  // `in_background`: the message is received even if no thread waits. Throws
  // Error(kResourceExhausted): no thread.
  std::shared_ptr<Receive> post(const TensorView& buffer, int source, int tag, bool in_background);

  // Returns when the message is in the buffer. Throws Error(kProtocol) if it doesn't fit, and what
  // ends the call. Afterwards the caller may use the buffer again.
  void wait(Receive& receive, const Call& call);

  // Gives the buffer back to the caller, for a receive that nobody will wait() for.
  void withdraw(Receive& receive);

  // Returns whether wait() would return at once, also because nothing can come any more. Never
  // waits.
  bool is_over(const Receive& receive);
  bool has_open_receives();

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Aside {
    MessageFront front;
    std::vector<std::byte> bytes;
  };
  struct Lane {  // one sender's messages
    bool has_reader = false;
    std::deque<Aside> aside;
    std::exception_ptr broken;  // set: nothing comes from it any more
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
  // Guarded by mutex_, except each lane's thread, which the posting thread alone uses.
  std::vector<Lane> lanes_;                   // by rank
  std::list<std::shared_ptr<Receive>> open_;  // in the order of post()
  bool is_closing_ = false;
};

}  // namespace ddprun::host
