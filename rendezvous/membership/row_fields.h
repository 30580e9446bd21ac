// SPDX-License-Identifier: Apache-2.0
// Turns plain data into a JSON object and back. One list of fields serves both directions:
//
//   struct Point { int x, y; };
//   BOOST_DESCRIBE_STRUCT(Point, (), (x, y))
//
// A field's key is its name, without a "_" at its end. So a new name changes the format. A type
// that needs more than a list has an each_field() of its own.
//
// An older version's row may lack fields; they keep their values. Unknown fields are skipped. Pure.
#pragma once

#include <boost/describe/members.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/mp11/algorithm.hpp>
#include <chrono>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"
#include "rendezvous/messages/json_fields.h"

namespace ddprun::membership {

template <typename T>
concept RowList = std::is_class_v<T> && !std::same_as<T, std::string> && requires(const T& list) {
  list.begin();
};

// Calls `fields` with the key and the value of each field that the type describes.
template <typename T, typename Fields>
requires boost::describe::has_describe_members<std::remove_const_t<T>>::value void each_field(
    T& part, Fields& fields) {
  using Members =
      boost::describe::describe_members<std::remove_const_t<T>, boost::describe::mod_any_access>;
  boost::mp11::mp_for_each<Members>([&](auto member) {
    std::string_view key = member.name;
    if (key.ends_with('_')) key.remove_suffix(1);
    fields(key, part.*member.pointer);
  });
}

class RowWriter {
 public:
  template <typename T>
  void operator()(std::string_view name, const T& field) {
    object_[name] = value(field);
  }

  std::string text() const { return boost::json::serialize(object_); }

  static boost::json::value value(bool field) { return field; }
  static boost::json::value value(double field) { return field; }
  template <std::integral T>
  requires(!std::same_as<T, bool>) static boost::json::value value(T field) {
    return static_cast<std::int64_t>(field);
  }
  template <typename T>
  requires std::is_enum_v<T>
  static boost::json::value value(T field) { return static_cast<std::int64_t>(field); }
  static boost::json::value value(const std::string& field) {
    const std::string clean = clean_utf8(field, std::numeric_limits<std::size_t>::max());
    return boost::json::string(clean);
  }
  template <typename Rep, typename Period>
  static boost::json::value value(std::chrono::duration<Rep, Period> field) {
    return static_cast<std::int64_t>(field.count());
  }
  static boost::json::value value(Clock::time_point field) {
    return value(field.time_since_epoch());
  }
  template <typename T>
  static boost::json::value value(const std::optional<T>& field) {
    return field ? value(*field) : boost::json::value(nullptr);
  }
  template <RowList T>
  static boost::json::value value(const T& field) {
    boost::json::array array;
    for (const auto& each : field) array.push_back(value(each));
    return array;
  }
  template <typename A, typename B>
  static boost::json::value value(const std::pair<A, B>& field) {
    return boost::json::array{value(field.first), value(field.second)};
  }
  // Writes a struct with each_field(), or a type with row_text() (a message of the protocol).
  template <typename T>
  requires(std::is_class_v<T> && !RowList<T>) static boost::json::value value(const T& field) {
    if constexpr (requires { row_text(field); }) {
      return boost::json::string(row_text(field));
    } else {
      RowWriter inner;
      each_field(field, inner);
      return std::move(inner.object_);
    }
  }

 private:
  boost::json::object object_;
};

// Throws Error(kProtocol), which names the field, if a value is of another type or out of range.
class RowReader {
 public:
  // `clock_shift` is added to each point in time: they may come from another clock.
  RowReader(std::string_view text, Clock::duration clock_shift)
      : RowReader(parsed_object(text), clock_shift) {}

  template <typename T>
  void operator()(std::string_view name, T& field) {
    const auto* found = object_.if_contains(name);
    if (found == nullptr) return;
    try {
      read(*found, field);
    } catch (const boost::system::system_error&) {
      throw Error(ErrorCode::kProtocol, concat('"', name, "\" is of another type"));
    }
  }

 private:
  using Value = boost::json::value;

  RowReader(boost::json::object object, Clock::duration clock_shift)
      : object_(std::move(object)), clock_shift_(clock_shift) {}

  void read(const Value& value, bool& field) { field = value.as_bool(); }
  void read(const Value& value, double& field) { field = value.to_number<double>(); }
  template <std::integral T>
  requires(!std::same_as<T, bool>) void read(const Value& value, T& field) {
    field = value.to_number<T>();
  }
  template <typename T>
  requires std::is_enum_v<T>
  void read(const Value& value, T& field) {
    std::underlying_type_t<T> number{};
    read(value, number);
    if (number < 0 || number > static_cast<std::underlying_type_t<T>>(last_of(field))) {
      throw Error(ErrorCode::kProtocol, concat("there is no phase ", number));
    }
    field = static_cast<T>(number);
  }
  void read(const Value& value, std::string& field) { field = std::string_view(value.as_string()); }
  template <typename Rep, typename Period>
  void read(const Value& value, std::chrono::duration<Rep, Period>& field) {
    field = std::chrono::duration<Rep, Period>(value.to_number<Rep>());
  }
  void read(const Value& value, Clock::time_point& field) {
    field = Clock::time_point(Clock::duration(value.to_number<Clock::rep>())) + clock_shift_;
  }
  template <typename T>
  void read(const Value& value, std::optional<T>& field) {
    if (value.is_null()) return field.reset();
    read(value, field.emplace());
  }
  template <RowList T>
  void read(const Value& value, T& field) {
    field.clear();
    for (const Value& each : value.as_array()) read(each, field.emplace_back());
  }
  template <typename Key, typename T>
  void read(const Value& value, std::map<Key, T>& field) {
    std::vector<std::pair<Key, T>> entries;
    read(value, entries);
    field = std::map<Key, T>(entries.begin(), entries.end());
  }
  template <typename A, typename B>
  void read(const Value& value, std::pair<A, B>& field) {
    const auto& both = value.as_array();
    read(both.at(0), field.first);
    read(both.at(1), field.second);
  }
  template <typename T>
  requires(std::is_class_v<T> && !RowList<T>) void read(const Value& value, T& field) {
    if constexpr (requires { read_row_text(std::string_view(), field); }) {
      read_row_text(std::string_view(value.as_string()), field);
    } else {
      RowReader inner(value.as_object(), clock_shift_);
      each_field(field, inner);
    }
  }

  boost::json::object object_;
  Clock::duration clock_shift_;
};

template <typename T>
std::string row_of(const T& part) {
  RowWriter writer;
  each_field(part, writer);
  return writer.text();
}

template <typename T>
T read_row(std::string_view text, Clock::duration clock_shift) {
  RowReader reader(text, clock_shift);
  T part;
  each_field(part, reader);
  return part;
}

}  // namespace ddprun::membership
