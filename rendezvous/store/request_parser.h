// SPDX-License-Identifier: Apache-2.0
// Cuts one connection's byte stream into requests, in whatever pieces it arrives. Pure: no I/O,
// clock or thread. It allocates only the lists of a complete request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/store/request.h"

namespace ddprun::store {

enum class ParseStatus {
  kNeedMore,   // The request goes on in bytes that have not arrived.
  kRequest,    // A request was read.
  kLarge,      // The request is complete, but its list is longer than `most_items`.
  kMalformed,  // The stream can't be read any further: close the connection. See error().
};

// stream := VALIDATE request*, where no other request is VALIDATE. The work is linear in a
// request's bytes, even if they arrive one by one: no byte is looked at twice.
class RequestParser {
 public:
  explicit RequestParser(const RequestLimits& limits) : limits_(&limits) {}

  // `bytes` begins where the current request begins and holds all that has arrived. After
  // kNeedMore, call again with the same bytes (they may have moved) and more behind them. After
  // kRequest, call with the bytes after the first request_bytes(). After kLarge, which costs as
  // little as kNeedMore, call again with the same bytes. `request` views `bytes`. `most_items`
  // limits the keys, or MULTI_SET's pairs.
  ParseStatus parse(std::string_view bytes, Request* request,
                    std::uint64_t most_items = ~std::uint64_t{0});

  // Returns the request's size after kRequest.
  std::size_t request_bytes() const { return request_bytes_; }

  // Returns, after kNeedMore, the least number of bytes that the request has, within the limits.
  std::size_t needed_bytes() const { return needed_bytes_; }

  // False until VALIDATE was read.
  bool validated() const { return validated_; }

  // Returns, after kMalformed, the reason for the log.
  const std::string& error() const { return error_; }

 private:
  enum class Step : std::uint8_t { kDone, kNeedMore, kMalformed };

  Step scan(std::string_view bytes);
  Step scan_field(char field, std::string_view bytes);
  Step scan_opcode(std::string_view bytes);
  Step scan_magic(std::string_view bytes);
  Step scan_fixed(std::string_view bytes, std::size_t size);
  Step scan_string(std::string_view bytes, bool is_key);
  Step scan_count(std::string_view bytes, std::size_t strings_per_item);
  Step malformed(std::string message);

  const RequestLimits* limits_;  // Outlives the parser.
  std::string error_;
  std::size_t offset_ = 0;  // Bytes of the current request that were looked at.
  std::size_t needed_bytes_ = 1;
  std::size_t request_bytes_ = 0;
  std::uint64_t items_ = 0;         // Length of the request's list; 0: it has none.
  std::uint64_t strings_left_ = 0;  // Strings of the present list still to read.
  std::uint8_t field_ = 0;          // Index into the opcode's fields.
  bool in_request_ = false;         // The opcode was read.
  bool in_list_ = false;            // The count was read.
  bool validated_ = false;
};

}  // namespace ddprun::store
