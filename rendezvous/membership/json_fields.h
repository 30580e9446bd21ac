// SPDX-License-Identifier: Apache-2.0
// Checked access to the fields of one JSON object. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::membership {

// Of texts for people, sent and taken in: what one agent says goes to every other one.
inline constexpr std::size_t kMaxShownBytes = 4096;
inline constexpr std::size_t kMaxLineBytes = 1024;  // of a worker's output, of a hang's evidence
inline constexpr std::size_t kMaxNameBytes = 256;   // of a host
inline constexpr std::size_t kMaxLabelBytes = 1024;

inline constexpr std::int64_t kMaxMicroseconds = std::int64_t{1} << 53;  // of a clock
inline constexpr int kMaxInt = std::numeric_limits<int>::max();          // for small()

// Every getter throws Error(kProtocol) that names the field: missing, of another type, out of
// range.
class JsonFields {
 public:
  // `where` begins every error: "message \"join\"". The object must outlive this.
  JsonFields(const boost::json::object& object, std::string where);

  bool has(std::string_view name) const;  // present and not null
  std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max) const;
  std::uint64_t counter(std::string_view name) const;  // 0 … 2^63 − 1
  int small(std::string_view name, int min, int max) const {
    return static_cast<int>(integer(name, min, max));
  }
  std::uint16_t port(std::string_view name) const {
    return static_cast<std::uint16_t>(integer(name, 0, 65535));
  }
  std::chrono::milliseconds time(std::string_view name) const;  // "…_ms"; up to 1,000 days
  double real(std::string_view name) const;                     // finite
  bool boolean(std::string_view name) const;
  std::string text(std::string_view name) const;
  // For people only: cut to about `max_bytes`, see clean_utf8.
  std::string clipped(std::string_view name, std::size_t max_bytes) const;
  // Each cut likewise.
  std::vector<std::string> texts(std::string_view name, std::size_t max_count,
                                 std::size_t max_bytes) const;
  JsonFields object(std::string_view name) const;
  std::vector<JsonFields> objects(std::string_view name, std::size_t max_count) const;

 private:
  [[noreturn]] void fail(std::string_view name, const std::string& what) const;
  const boost::json::value& at(std::string_view name) const;
  std::string where_of(std::string_view name) const;

  const boost::json::object& object_;
  std::string where_;
};

// As JSON integers that the getters take: what is out of their range becomes its limit.
std::int64_t time_value(std::chrono::milliseconds time);
std::int64_t counter_value(std::uint64_t value);

// `text` with U+FFFD for each byte that isn't part of valid UTF-8. What is longer than `max_bytes`
// is cut there, and ends with "…" (so has up to 3 bytes more).
std::string clean_utf8(std::string_view text, std::size_t max_bytes);
boost::json::string clean_text(std::string_view text, std::size_t max_bytes = kMaxShownBytes);
// Likewise, with a space for each control character: in JSON these are six times as long.
boost::json::string line_text(std::string_view text, std::size_t max_bytes);

}  // namespace ddprun::membership
