// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/exchange.h"

#include <cstddef>

#include "common/throw_error.h"

namespace ddprun {
namespace {

// Returns `num_parts` equal parts, in rank order.
std::vector<TensorView> parts_of(const TensorView& whole, int num_parts, const char* name) {
  const auto count = static_cast<std::size_t>(num_parts);
  if (whole.count % count != 0) {
    throw_invalid(name, " has ", whole.count, " elements, which ", num_parts,
                  " ranks can't share equally");
  }
  std::vector<TensorView> parts(count, whole);
  for (std::size_t i = 0; i < count; ++i) {
    parts[i].count = whole.count / count;
    if (whole.data != nullptr) {
      parts[i].data = static_cast<std::byte*>(whole.data) + i * parts[i].size_bytes();
    }
  }
  return parts;
}

void check_root(const Communicator& communicator, int root) {
  if (root >= 0 && root < communicator.size()) return;
  throw_invalid("root is rank ", root, ", but the ranks are 0 … ", communicator.size() - 1);
}

void check_part(const TensorView& whole, const TensorView& part, int num_parts) {
  if (whole.count == part.count * static_cast<std::size_t>(num_parts) &&
      whole.dtype == part.dtype) {
    return;
  }
  throw_invalid("the root's ", whole.count, " ", to_string(whole.dtype), " are not ", num_parts,
                " parts of ", part.count, " ", to_string(part.dtype));
}

void send_if_any(Communicator& communicator, const TensorView& part, int peer,
                 const CallOptions& options) {
  if (part.count > 0) communicator.send(part, peer, options);
}

void receive_if_any(Communicator& communicator, const TensorView& part, int peer,
                    const CallOptions& options) {
  if (part.count > 0) communicator.recv(part, peer, options);
}

using PeerCall = void(Communicator&, const TensorView&, int, const CallOptions&);

// Each rank does `as_rank` with its `part` and the root. The root does `as_root` with each part of
// `whole` and its rank.
WorkPtr exchange_with_root(Communicator& communicator, const TensorView& part,
                           const TensorView& whole, int root, const CallOptions& options,
                           PeerCall* as_rank, PeerCall* as_root) {
  check_root(communicator, root);
  const bool is_root = communicator.rank() == root;
  if (is_root) check_part(whole, part, communicator.size());
  return communicator.group(
      [&] {
        as_rank(communicator, part, root, options);
        if (!is_root) return;
        const auto parts = parts_of(whole, communicator.size(), "whole");
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          as_root(communicator, parts[rank], static_cast<int>(rank), options);
        }
      },
      options.async);
}

}  // namespace

WorkPtr all_to_all(Communicator& communicator, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs, const CallOptions& options) {
  const auto size = static_cast<std::size_t>(communicator.size());
  if (inputs.size() != size || outputs.size() != size) {
    throw_invalid("all_to_all of ", inputs.size(), " inputs and ", outputs.size(),
                  " outputs among ", size, " ranks");
  }
  return communicator.group(
      [&] {
        for (std::size_t rank = 0; rank < size; ++rank) {
          send_if_any(communicator, inputs[rank], static_cast<int>(rank), options);
          receive_if_any(communicator, outputs[rank], static_cast<int>(rank), options);
        }
      },
      options.async);
}

WorkPtr all_to_all(Communicator& communicator, const TensorView& input, const TensorView& output,
                   const CallOptions& options) {
  if (input.count != output.count || input.dtype != output.dtype) {
    throw_invalid("all_to_all of ", input.count, " ", to_string(input.dtype), " into ",
                  output.count, " ", to_string(output.dtype));
  }
  return all_to_all(communicator, parts_of(input, communicator.size(), "input"),
                    parts_of(output, communicator.size(), "output"), options);
}

WorkPtr gather(Communicator& communicator, const TensorView& input, const TensorView& output,
               int root, const CallOptions& options) {
  return exchange_with_root(communicator, input, output, root, options, send_if_any,
                            receive_if_any);
}

WorkPtr scatter(Communicator& communicator, const TensorView& input, const TensorView& output,
                int root, const CallOptions& options) {
  return exchange_with_root(communicator, output, input, root, options, receive_if_any,
                            send_if_any);
}

WorkPtr all_reduce_each(Communicator& communicator, const std::vector<TensorView>& buffers,
                        ReduceOp op, const CallOptions& options) {
  return communicator.group(
      [&] {
        for (const TensorView& buffer : buffers) communicator.all_reduce(buffer, op, options);
      },
      options.async);
}

}  // namespace ddprun
