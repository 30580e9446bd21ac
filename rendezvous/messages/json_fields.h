// SPDX-License-Identifier: Apache-2.0
// Turns a message, or a part of one, into a JSON object and back. One list of its fields serves
// both directions:
//
//   template <MaybeConst<Leave> Self, typename Fields>
//   void each_json(Self& leave, Fields& fields) {
//     fields.shown("reason", leave.reason);
//     fields.number("exit_code", leave.exit_code, 0, 255);
//   }
//
// JsonReader checks types and ranges. It throws Error(kProtocol), which names the field. Pure.
#pragma once

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/json.h"

namespace ddprun::membership {

using ddprun::clean_text, ddprun::clean_utf8, ddprun::counter_value, ddprun::JsonFields,
    ddprun::kMaxShownBytes, ddprun::line_text, ddprun::time_value;

inline constexpr std::size_t kMaxLineBytes = 1024;  // a line of output or of a hang's evidence
inline constexpr std::size_t kMaxNameBytes = 256;   // a host's name
inline constexpr std::size_t kMaxLabelBytes = 1024;

inline constexpr std::int64_t kMaxMicroseconds = std::int64_t{1} << 53;  // the largest clock value
inline constexpr int kMaxInt = std::numeric_limits<int>::max();
inline constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

template <typename Self, typename T>
concept MaybeConst = std::same_as<std::remove_const_t<Self>, T>;

// Returns `value` within the bounds, or `least` if it isn't finite.
inline double bounded_real(double value, double least, double most) {
  return std::isfinite(value) ? std::clamp(value, least, most) : least;
}

class JsonWriter {
 public:
  static constexpr bool kReads = false;

  boost::json::object take() { return std::move(object_); }

  // Returns whether to write a field that may be absent. A reader's wants() returns whether the
  // object has it.
  bool wants(const char*, bool is_worth_it) const { return is_worth_it; }
  template <typename T>
  bool wants(const char*, const std::optional<T>& field) const {
    return field.has_value();
  }

  template <std::integral T>
  void number(const char* name, T field, std::int64_t, std::int64_t) {
    object_[name] = field;
  }
  // A value out of range becomes the nearest limit.
  void bounded(const char* name, std::int64_t field, std::int64_t least, std::int64_t most) {
    object_[name] = std::clamp(field, least, most);
  }
  void bounded(const char* name, std::chrono::microseconds field, std::int64_t most) {
    bounded(name, field.count(), 0, most);
  }
  // A value out of range becomes the nearest limit, in writing and in reading.
  void real(const char* name, double field, double least, double most) {
    object_[name] = bounded_real(field, least, most);
  }
  void finite(const char* name, double field) { object_[name] = std::isfinite(field) ? field : 0; }
  void counter(const char* name, std::uint64_t field) { object_[name] = counter_value(field); }
  void boolean(const char* name, bool field) { object_[name] = field; }
  void time(const char* name, std::chrono::milliseconds field) {
    object_[name] = time_value(field);
  }
  void text(const char* name, const std::string& field) { object_[name] = clean_text(field); }
  // Writes the field as it is.
  void whole(const char* name, const std::string& field) { object_[name] = field; }
  // Writes a text for people, cut to about `max_bytes`. The reader cuts it, too.
  void shown(const char* name, const std::string& field, std::size_t max_bytes = kMaxShownBytes) {
    object_[name] = clean_text(field, max_bytes);
  }
  // Does the same as shown(), and removes control characters.
  void line(const char* name, const std::string& field, std::size_t max_bytes) {
    object_[name] = line_text(field, max_bytes);
  }
  // Write the first `max_count` texts.
  void texts(const char* name, std::span<const std::string> field, std::size_t max_count,
             std::size_t max_bytes) {
    list(name, field, max_count,
         [&](const std::string& each) { return clean_text(each, max_bytes); });
  }
  void lines(const char* name, std::span<const std::string> field, std::size_t max_count,
             std::size_t max_bytes) {
    list(name, field, max_count,
         [&](const std::string& each) { return line_text(each, max_bytes); });
  }
  template <typename T>
  void object(const char* name, const T& field) {
    object_[name] = value(field);
  }
  template <typename T>
  void objects(const char* name, const std::vector<T>& field, std::size_t max_count) {
    list(name, field, max_count, [](const T& each) { return value(each); });
  }

 private:
  template <typename T>
  static boost::json::object value(const T& field) {
    JsonWriter inner;
    each_json(field, inner);
    return inner.take();
  }
  template <typename List, typename Make>
  void list(const char* name, const List& field, std::size_t max_count, Make make) {
    boost::json::array array;
    for (const auto& each : field) {
      if (array.size() == max_count) break;
      array.push_back(make(each));
    }
    object_[name] = std::move(array);
  }

  boost::json::object object_;
};

// Has JsonWriter's functions, which read the fields here.
class JsonReader {
 public:
  static constexpr bool kReads = true;

  explicit JsonReader(JsonFields in) : in_(std::move(in)) {}

  bool has(const char* name) const { return in_.has(name); }

  bool wants(const char* name, bool) const { return has(name); }
  template <typename T>
  bool wants(const char* name, std::optional<T>& field) const {
    if (has(name)) field.emplace();
    return has(name);
  }

  template <std::integral T>
  void number(const char* name, T& field, std::int64_t least, std::int64_t most) {
    field = static_cast<T>(in_.integer(name, least, most));
  }
  template <std::integral T>
  void bounded(const char* name, T& field, std::int64_t least, std::int64_t most) {
    number(name, field, least, most);
  }
  void bounded(const char* name, std::chrono::microseconds& field, std::int64_t most) {
    field = std::chrono::microseconds(in_.integer(name, 0, most));
  }
  void real(const char* name, double& field, double least, double most) {
    field = bounded_real(in_.real(name), least, most);
  }
  void finite(const char* name, double& field) { field = in_.real(name); }
  void counter(const char* name, std::uint64_t& field) { field = in_.counter(name); }
  void boolean(const char* name, bool& field) { field = in_.boolean(name); }
  void time(const char* name, std::chrono::milliseconds& field) { field = in_.time(name); }
  void text(const char* name, std::string& field) { field = in_.text(name); }
  void whole(const char* name, std::string& field) { text(name, field); }
  void shown(const char* name, std::string& field, std::size_t max_bytes = kMaxShownBytes) {
    field = in_.clipped(name, max_bytes);
  }
  void line(const char* name, std::string& field, std::size_t max_bytes) {
    field = std::string(line_text(in_.text(name), max_bytes));
  }
  void texts(const char* name, std::vector<std::string>& field, std::size_t max_count,
             std::size_t max_bytes) {
    field = in_.texts(name, max_count, max_bytes);
  }
  void lines(const char* name, std::vector<std::string>& field, std::size_t max_count,
             std::size_t max_bytes) {
    field = in_.texts(name, max_count, max_bytes);
  }
  template <typename T>
  void object(const char* name, T& field) {
    JsonReader inner(in_.object(name));
    each_json(field, inner);
  }
  template <typename T>
  void objects(const char* name, std::vector<T>& field, std::size_t max_count) {
    for (JsonFields& each : in_.objects(name, max_count)) {
      JsonReader inner(std::move(each));
      each_json(field.emplace_back(), inner);
    }
  }

 private:
  JsonFields in_;
};

template <typename T>
boost::json::object json_of(const T& part) {
  JsonWriter writer;
  each_json(part, writer);
  return writer.take();
}

template <typename T>
T read_json(JsonFields in) {
  JsonReader reader(std::move(in));
  T part;
  each_json(part, reader);
  return part;
}

}  // namespace ddprun::membership
