// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "common/throw_error.h"
#include "worker_sdk/core/host/collectives.h"

namespace ddprun::host {
namespace {

std::size_t num_pieces_of(std::size_t total, std::size_t piece) {
  return (total + piece - 1) / piece;
}

std::uint32_t number(std::size_t pieces) { return static_cast<std::uint32_t>(pieces); }

class NodeCollectives final : public Collectives {
 public:
  NodeCollectives(NodeGroup& group, NodeSteps& steps, const Arena& arena)
      : group_(group), steps_(steps), arena_(arena) {}

  void all_reduce(const Call& call, const TensorView& buffer, ReduceOp op) override {
    const std::size_t size_bytes = buffer.size_bytes();
    if (size_bytes <= kOneShotBytes) return all_reduce_one_shot(call, buffer, op);
    steps_.enter(call, arena_.find(buffer.data, size_bytes));
    const std::vector<std::byte*> buffers = arena_buffers(call, size_bytes);
    if (buffers.empty()) return all_reduce_staged(call, buffer, op);
    all_reduce_in_place(call, buffers, buffer, op);
  }

  void broadcast(const Call& call, const TensorView& buffer, int root) override {
    const std::size_t size_bytes = buffer.size_bytes();
    const int local_root = group_.topology().local_index_of(root);
    const bool is_root = local_root == me();
    if (size_bytes <= kOneShotBytes) {
      const std::uint32_t parity = NodeSteps::parity(call);
      if (is_root) copy_bytes(group_.one_shot(me(), parity), buffer.data, size_bytes);
      steps_.enter(call);
      if (!is_root) copy_bytes(buffer.data, group_.one_shot(local_root, parity), size_bytes);
      return;
    }
    steps_.enter(call, arena_.find(buffer.data, size_bytes));
    if (const auto buffers = arena_buffers(call, size_bytes); !buffers.empty()) {
      if (!is_root) {
        copy_bytes(buffer.data, buffers[static_cast<std::size_t>(local_root)], size_bytes);
      }
      steps_.leave_buffers(call);  // the root may change its buffer after the return
      return;
    }
    const std::size_t num_pieces = num_pieces_of(size_bytes, kPipelinePieceBytes);
    for (std::size_t piece = 0; piece < num_pieces; ++piece) {
      const std::size_t offset = piece * kPipelinePieceBytes;
      const std::size_t length = std::min(kPipelinePieceBytes, size_bytes - offset);
      if (is_root) {
        if (piece >= 2) steps_.wait_all_reduced(number(piece - 1), call);  // the half is then free
        copy_bytes(input_half(me(), piece), bytes_of(buffer) + offset, length);
        steps_.copied(number(piece + 1));
      } else {
        steps_.wait_copied(local_root, number(piece + 1), call);
        copy_bytes(bytes_of(buffer) + offset, input_half(local_root, piece), length);
        steps_.reduced(number(piece + 1));
      }
    }
    is_root ? steps_.reduced(number(num_pieces)) : steps_.copied(number(num_pieces));
    steps_.finish_pieces(number(num_pieces), number(num_pieces));
  }

  void all_gather(const Call& call, const TensorView& input, const TensorView& output) override {
    const std::size_t size_bytes = input.size_bytes();
    const auto place_of = [&](int local) {
      return bytes_of(output) + static_cast<std::size_t>(local) * size_bytes;
    };
    const auto keep_own = [&] {
      if (place_of(me()) != input.data) std::memmove(place_of(me()), input.data, size_bytes);
    };
    if (size_bytes <= kOneShotBytes) {
      const std::uint32_t parity = NodeSteps::parity(call);
      copy_bytes(group_.one_shot(me(), parity), input.data, size_bytes);
      steps_.enter(call);
      for (int local = 0; local < num_local(); ++local) {
        copy_bytes(place_of(local), group_.one_shot(local, parity), size_bytes);
      }
      return;
    }
    steps_.enter(call, arena_.find(input.data, size_bytes));
    if (const auto buffers = arena_buffers(call, size_bytes); !buffers.empty()) {
      for (int local = 0; local < num_local(); ++local) {
        if (local != me()) {
          copy_bytes(place_of(local), buffers[static_cast<std::size_t>(local)], size_bytes);
        }
      }
      keep_own();
      steps_.leave_buffers(call);  // the input may be changed after the return
      return;
    }
    const std::size_t num_pieces = num_pieces_of(size_bytes, kPipelinePieceBytes);
    const auto length_of = [&](std::size_t piece) {
      return std::min(kPipelinePieceBytes, size_bytes - piece * kPipelinePieceBytes);
    };
    const auto copy_in = [&](std::size_t piece) {
      if (piece >= 2) steps_.wait_all_reduced(number(piece - 1), call);  // the half is then free
      copy_bytes(input_half(me(), piece),
                 static_cast<std::byte*>(input.data) + piece * kPipelinePieceBytes,
                 length_of(piece));
      steps_.copied(number(piece + 1));
    };
    copy_in(0);
    for (std::size_t piece = 0; piece < num_pieces; ++piece) {
      if (piece + 1 < num_pieces) copy_in(piece + 1);
      for (int local = 0; local < num_local(); ++local) {
        if (local == me()) continue;
        steps_.wait_copied(local, number(piece + 1), call);
        copy_bytes(place_of(local) + piece * kPipelinePieceBytes, input_half(local, piece),
                   length_of(piece));
      }
      steps_.reduced(number(piece + 1));
    }
    keep_own();
    steps_.finish_pieces(number(num_pieces), number(num_pieces));
  }

  void reduce_scatter(const Call& call, const TensorView& input, const TensorView& output,
                      ReduceOp op) override {
    const std::size_t size_bytes = input.size_bytes();
    const std::size_t own_offset = output.size_bytes() * static_cast<std::size_t>(me());
    const auto deliver = [&](const std::byte* block, std::size_t offset, std::size_t num_bytes) {
      copy_bytes(bytes_of(output) + offset, block, num_bytes);
    };
    std::vector<const std::byte*> sources;
    if (size_bytes <= kOneShotBytes) {
      const std::uint32_t parity = NodeSteps::parity(call);
      copy_bytes(group_.one_shot(me(), parity), input.data, size_bytes);
      steps_.enter(call);
      for (int local = 0; local < num_local(); ++local) {
        sources.push_back(group_.one_shot(local, parity) + own_offset);
      }
      return reduce_blocks(sources, output.count, output.dtype, op, num_local(), deliver);
    }
    steps_.enter(call, arena_.find(input.data, size_bytes));
    const auto buffers = arena_buffers(call, size_bytes);
    if (buffers.empty()) return reduce_scatter_staged(call, input, output, op);
    for (const std::byte* other : buffers) sources.push_back(other + own_offset);
    reduce_blocks(sources, output.count, output.dtype, op, num_local(), deliver);
    steps_.leave_buffers(call);  // the input may be changed after the return
  }

  void barrier(const Call& call) override { steps_.enter(call); }

 private:
  // Each rank reduces everything itself, so one flag is the only synchronisation. The slot is
  // written again two calls later, when every rank has entered the call after this one.
  void all_reduce_one_shot(const Call& call, const TensorView& buffer, ReduceOp op) {
    const std::uint32_t parity = NodeSteps::parity(call);
    copy_bytes(group_.one_shot(me(), parity), buffer.data, buffer.size_bytes());
    steps_.enter(call);
    std::vector<const std::byte*> sources;
    for (int local = 0; local < num_local(); ++local) {
      sources.push_back(group_.one_shot(local, parity));
    }
    reduce_blocks(sources, buffer.count, buffer.dtype, op, num_local(),
                  [&](const std::byte* block, std::size_t offset, std::size_t num_bytes) {
                    copy_bytes(bytes_of(buffer) + offset, block, num_bytes);
                  });
  }

  void all_reduce_in_place(const Call& call, const std::vector<std::byte*>& buffers,
                           const TensorView& buffer, ReduceOp op) {
    const std::size_t element = size_of(buffer.dtype);
    const Range own =
        slice_of(buffer.count, static_cast<std::size_t>(me()), buffers.size(), kGranule);
    std::vector<const std::byte*> sources;
    for (const std::byte* other : buffers) sources.push_back(other + own.begin * element);
    reduce_blocks(sources, own.size(), buffer.dtype, op, num_local(),
                  [&](const std::byte* block, std::size_t offset, std::size_t num_bytes) {
                    for (std::byte* other : buffers) {
                      copy_bytes(other + own.begin * element + offset, block, num_bytes);
                    }
                  });
    steps_.leave_buffers(call);
  }

  // Piece k is copied in while the others still reduce piece k − 1. Two halves are enough: a rank
  // that has published `copied` for piece k + 1 has taken the results of piece k − 1.
  void all_reduce_staged(const Call& call, const TensorView& buffer, ReduceOp op) {
    const auto world = static_cast<std::size_t>(num_local());
    const auto self = static_cast<std::size_t>(me());
    const std::size_t element = size_of(buffer.dtype);
    const std::size_t piece_count = kPipelinePieceBytes / element;
    const std::size_t num_pieces = num_pieces_of(buffer.count, piece_count);
    const auto length_of = [&](std::size_t piece) {
      return std::min(piece_count, buffer.count - piece * piece_count);
    };
    const auto user_at = [&](std::size_t piece, std::size_t first) {
      return bytes_of(buffer) + (piece * piece_count + first) * element;
    };
    const auto copy_in = [&](std::size_t piece) {  // not the slice that this rank sums
      for (std::size_t local = 0; local < world; ++local) {
        const Range slice = slice_of(length_of(piece), local, world, kGranule);
        if (local == self) continue;
        copy_bytes(input_half(me(), piece) + slice.begin * element, user_at(piece, slice.begin),
                   slice.size() * element);
      }
      steps_.copied(number(piece + 1));
    };

    copy_in(0);
    for (std::size_t piece = 0; piece < num_pieces; ++piece) {
      if (piece + 1 < num_pieces) copy_in(piece + 1);
      steps_.wait_all_copied(number(piece + 1), call);
      const Range own = slice_of(length_of(piece), self, world, kGranule);
      std::vector<const std::byte*> sources;
      for (int local = 0; local < num_local(); ++local) {
        sources.push_back(local == me() ? user_at(piece, own.begin)
                                        : input_half(local, piece) + own.begin * element);
      }
      std::byte* const result = result_half(me(), piece) + own.begin * element;
      reduce_blocks(sources, own.size(), buffer.dtype, op, num_local(),
                    [&](const std::byte* block, std::size_t offset, std::size_t num_bytes) {
                      copy_bytes(result + offset, block, num_bytes);
                      copy_bytes(user_at(piece, own.begin) + offset, block, num_bytes);
                    });
      steps_.reduced(number(piece + 1));
      steps_.wait_all_reduced(number(piece + 1), call);
      for (std::size_t local = 0; local < world; ++local) {
        if (local == self) continue;
        const Range slice = slice_of(length_of(piece), local, world, kGranule);
        copy_bytes(user_at(piece, slice.begin),
                   result_half(static_cast<int>(local), piece) + slice.begin * element,
                   slice.size() * element);
      }
    }
    steps_.finish_pieces(number(num_pieces), number(num_pieces));
  }

  // A piece holds, for every rank, the next elements of its part.
  void reduce_scatter_staged(const Call& call, const TensorView& input, const TensorView& output,
                             ReduceOp op) {
    const auto world = static_cast<std::size_t>(num_local());
    const std::size_t element = size_of(input.dtype);
    const std::size_t piece_count = kPipelinePieceBytes / element / world;
    const std::size_t num_pieces = num_pieces_of(output.count, piece_count);
    const auto length_of = [&](std::size_t piece) {
      return std::min(piece_count, output.count - piece * piece_count);
    };
    const auto input_at = [&](std::size_t part, std::size_t piece) {
      return bytes_of(input) + (part * output.count + piece * piece_count) * element;
    };
    const auto copy_in = [&](std::size_t piece) {
      if (piece >= 2) steps_.wait_all_reduced(number(piece - 1), call);  // the half is then free
      for (std::size_t part = 0; part < world; ++part) {
        if (part == static_cast<std::size_t>(me())) continue;
        copy_bytes(input_half(me(), piece) + part * piece_count * element, input_at(part, piece),
                   length_of(piece) * element);
      }
      steps_.copied(number(piece + 1));
    };
    copy_in(0);
    for (std::size_t piece = 0; piece < num_pieces; ++piece) {
      if (piece + 1 < num_pieces) copy_in(piece + 1);
      steps_.wait_all_copied(number(piece + 1), call);
      const auto part = static_cast<std::size_t>(me());
      std::vector<const std::byte*> sources;
      for (int local = 0; local < num_local(); ++local) {
        sources.push_back(local == me() ? input_at(part, piece)
                                        : input_half(local, piece) + part * piece_count * element);
      }
      reduce_blocks(sources, length_of(piece), output.dtype, op, num_local(),
                    [&](const std::byte* block, std::size_t offset, std::size_t num_bytes) {
                      copy_bytes(bytes_of(output) + piece * piece_count * element + offset, block,
                                 num_bytes);
                    });
      steps_.reduced(number(piece + 1));
    }
    steps_.finish_pieces(number(num_pieces), number(num_pieces));
  }

  // Returns every local rank's buffer if all lie in the arena; else nothing. The same on every
  // rank.
  std::vector<std::byte*> arena_buffers(const Call& call, std::size_t size_bytes) {
    std::vector<std::byte*> buffers;
    for (int local = 0; local < num_local(); ++local) {
      if (steps_.published(call, local).buffer_id < 0) return {};
    }
    for (int local = 0; local < num_local(); ++local) {
      const PublishedCall& published = steps_.published(call, local);
      const Arena::Place place{.buffer_id = published.buffer_id, .offset = published.offset};
      std::byte* const buffer = arena_.resolve(local, place, size_bytes);
      if (!buffer) {
        throw_invalid(call.text(), ": another rank uses a buffer that this rank has dropped");
      }
      buffers.push_back(buffer);
    }
    return buffers;
  }

  // A rank's staging slot has two input halves and two result halves.
  std::byte* input_half(int local, std::size_t piece) {
    return group_.staging(local) + (piece & 1) * kPipelinePieceBytes;
  }
  std::byte* result_half(int local, std::size_t piece) {
    return group_.staging(local) + (2 + (piece & 1)) * kPipelinePieceBytes;
  }
  int num_local() const { return group_.num_local(); }
  int me() const { return group_.local_index(); }

  NodeGroup& group_;
  NodeSteps& steps_;
  const Arena& arena_;
  static_assert(4 * kPipelinePieceBytes <= kStagingBytes);
};

}  // namespace

void NodeSteps::enter(const Call& call, const std::optional<Arena::Place>& place) {
  PublishedCall& own = group_.own_control().calls[parity(call)];
  own.header = call.header;
  own.buffer_id = place ? place->buffer_id : -1;
  own.offset = place ? place->offset : 0;
  group_.publish(&RankControl::entered, call.header.sequence);
  group_.wait_for_all(&RankControl::entered, call.header.sequence, call);
  for (int local = 0; local < group_.num_local(); ++local) {
    const CallHeader& other = published(call, local).header;
    if (other == call.header) continue;
    throw Error(ErrorCode::kProtocol, different_calls(group_.topology().rank(), call.header,
                                                      group_.rank_of(local), other));
  }
}

std::unique_ptr<Collectives> make_node_collectives(NodeGroup& group, NodeSteps& steps,
                                                   const Arena& arena) {
  return std::make_unique<NodeCollectives>(group, steps, arena);
}

}  // namespace ddprun::host
