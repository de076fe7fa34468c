// Streams over models that sparsejit compiled. C++17, no other files, no exceptions in a step.
//
//     #include "mymodel.hpp"
//
//     mymodel::Stream stream;                  // all memory is taken here
//     stream.step(x, y);                       // a step: x and y are arrays, vectors or spans
//     auto done = stream.run(block, results);  // a block of any length; the rest waits
//     stream.reset();
//
// A stream belongs to one thread at a time. step, run and reset allocate nothing, lock nothing and
// make no system call.
#ifndef SPARSEJIT_HPP
#define SPARSEJIT_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

#if __cplusplus < 201703L && (!defined(_MSVC_LANG) || _MSVC_LANG < 201703L)
#error "sparsejit.hpp needs C++17"
#endif

namespace sparsejit {

/// Elements side by side: made of a pointer and a number, of an array, or of what has data() and
/// size(), such as std::vector, std::array and C++20's std::span.
template <class T>
class Span {
public:
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    template <std::size_t Size>
    constexpr Span(T (&array)[Size]) noexcept : data_(array), size_(Size) {}

    template <class Container,
              class = std::enable_if_t<std::is_convertible_v<
                  decltype(std::declval<Container &>().data()), T *>>>
    constexpr Span(Container &&container) noexcept
        : data_(container.data()), size_(container.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    T *data_;
    std::size_t size_;
};

/// The result of `run`: the status of the last step, 0 if all is well; steps that ran; and elements
/// that they wrote to the output.
struct Done {
    int status;
    std::size_t steps;
    std::size_t written;
};

/// `run` and `step` return it, having done nothing, for a span of another size than they need.
constexpr int wrong_size = -2;

/// A model with its states and all memory that a step needs. `Model` is in the model's .hpp file.
template <class Model>
class Stream {
public:
    /// Take all memory, touch it, and set the first states. Throws std::runtime_error where the
    /// processor lacks an instruction set that the model's header lists.
    Stream() : memory_(new unsigned char[memory_bytes])
    {
        if (Model::prepare(workspace()) != 0)
            throw std::runtime_error("this processor lacks instructions that the model needs");
        std::memset(memory_.get(), 0, memory_bytes);
        reset();
    }

    Stream(Stream &&) noexcept = default;
    Stream &operator=(Stream &&) noexcept = default;

    /// Set the first states again, and forget what waits for the next block.
    void reset() noexcept
    {
        Model::reset(state());
        waiting_ = 0;
    }

    /// Run a step of a model with several inputs or outputs: tables of pointers, in the order of
    /// the header's numbers. Returns 0, or the status that the header describes.
    int step(const typename Model::Input *const *inputs,
             typename Model::Output *const *outputs) noexcept
    {
        return Model::step(inputs, outputs, state(), workspace());
    }

    /// Run a step of a model with one input and one output, of exactly their sizes.
    template <class M = Model>
    int step(Span<const typename M::Input> x, Span<typename M::Output> y) noexcept
    {
        static_assert(M::inputs == 1 && M::outputs == 1, "give tables of pointers");
        if (x.size() != M::input_sizes[0] || y.size() != M::output_sizes[0])
            return wrong_size;
        return one(x.data(), y.data());
    }

    /// Elements of the output that `run` writes for a block of this many elements of the input.
    std::size_t written_for(std::size_t elements) const noexcept
    {
        return (waiting_ + elements) / Model::input_sizes[0] * Model::output_sizes[0];
    }

    /// Run all steps of a block of any length; elements that fill no step wait for the next block.
    /// `y` has room for `written_for(x.size())` elements or more. After another status than 0 the
    /// rest of the block is dropped.
    template <class M = Model>
    Done run(Span<const typename M::Input> x, Span<typename M::Output> y) noexcept
    {
        static_assert(M::inputs == 1 && M::outputs == 1, "run takes one input to one output");
        constexpr std::size_t size = M::input_sizes[0];
        if (y.size() < written_for(x.size()))
            return {wrong_size, 0, 0};
        Done done = {0, 0, 0};
        const typename M::Input *next = x.data();
        std::size_t left = x.size();
        while (waiting_ + left >= size) {
            const typename M::Input *given = next;
            std::size_t taken = size;
            if (waiting_ != 0) {
                taken = size - waiting_;
                keep(next, taken);
                waiting_ = 0;
                given = kept();
            }
            next += taken;
            left -= taken;
            done.status = one(given, y.data() + done.written);
            if (done.status != 0)
                return done;
            done.steps += 1;
            done.written += M::output_sizes[0];
        }
        keep(next, left);
        waiting_ += left;
        return done;
    }

private:
    static constexpr std::size_t line = 64;
    static constexpr std::size_t rounded(std::size_t bytes)
    {
        return (bytes + line - 1) / line * line;
    }
    static constexpr std::size_t state_end = rounded(Model::state_bytes);
    static constexpr std::size_t workspace_end = state_end + rounded(Model::workspace_bytes);
    static constexpr std::size_t memory_bytes = workspace_end + rounded(Model::input_bytes) + line;

    unsigned char *place(std::size_t offset) const noexcept
    {
        auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
        return memory_.get() + (line - address % line) % line + offset;
    }
    void *state() const noexcept { return place(0); }
    void *workspace() const noexcept { return place(state_end); }

    template <class M = Model>
    const typename M::Input *kept() const noexcept
    {
        return reinterpret_cast<const typename M::Input *>(place(workspace_end));
    }

    template <class T>
    void keep(const T *values, std::size_t count) noexcept
    {
        if (count != 0)
            std::memcpy(place(workspace_end) + waiting_ * sizeof(T), values, count * sizeof(T));
    }

    template <class M = Model>
    int one(const typename M::Input *x, typename M::Output *y) noexcept
    {
        const typename M::Input *const inputs[] = {x};
        typename M::Output *const outputs[] = {y};
        return M::step(inputs, outputs, state(), workspace());
    }

    std::unique_ptr<unsigned char[]> memory_;
    std::size_t waiting_ = 0;
};

}  // namespace sparsejit

#endif
