import Statepack
import Testing

struct NDArrayTests {
    @Test func aNewArrayIsZeroedAndAligned() {
        for shape in [[], [0], [1], [3, 5], [2, 0, 4], [7, 11, 13]] {
            for type in [NDArray.ScalarType.float32, .bool, .int64, .bfloat16, .int4] {
                let array = NDArray(descriptor: NDArrayDescriptor(scalarType: type, shape: shape))
                array.rawView().withUnsafeBytes { pointer, _, _ in #expect(UInt(bitPattern: pointer) % 64 == 0) }
                let bytes = array.rawView().bytes
                #expect((0..<bytes.byteCount).allSatisfy { bytes.unsafeLoad(fromByteOffset: $0, as: UInt8.self) == 0 })
                #expect(bytes.byteCount == NDArrayDescriptor(scalarType: type, shape: shape).minimumByteCount)
            }
        }
    }

    @Test func scalarsFillInRowMajorOrderAndDecideTheType() {
        let array = NDArray(scalars: (0..<6).map(Int32.init), shape: [2, 3])
        #expect(array.scalarType == .int32)
        #expect(array.strides == [3, 1])
        let view = array.view(as: Int32.self)
        #expect(view[scalarAt: [0, 2]] == 2 && view[scalarAt: [1, 0]] == 3)
        #expect(NDArray(scalars: [true], shape: [1]).scalarType == .bool)
        #expect(NDArray(scalars: [1], shape: [1]).scalarType == .int64)
        #expect(NDArray(scalars: [Float16(1)], shape: []).scalarType == .float16)
        #expect(NDArray(scalars: [BFloat16(1)], shape: [1]).scalarType == .bfloat16)
    }

    @Test func theScalarTypesAreThoseOfCoreAI() {
        let names = NDArray.ScalarType.allCases.map { "\($0)" }
        #expect(names.count == 35)
        #expect(
            names.joined(separator: " ")
                == "bool int2 int3 int4 int5 int6 int7 int8 int16 int32 int64 int128 uint1 uint2 uint3 uint4 uint5 "
                + "uint6 uint7 uint8 uint16 uint32 uint64 uint128 float8e5m2 float8e4m3fn float8e8m0fn float4e2m1fn "
                + "float16 float32 float64 bfloat16 cfloat16 cfloat32 cfloat64")
    }

    @Test func bfloat16RoundsToNearestEven() {
        #expect(Float(BFloat16(1)) == 1)
        #expect(BFloat16(Float(bitPattern: 0x3F80_8000)).bitPattern == 0x3F80)
        #expect(BFloat16(Float(bitPattern: 0x3F81_8000)).bitPattern == 0x3F82)
        #expect(BFloat16(Float(bitPattern: 0x3F80_8001)).bitPattern == 0x3F81)
        #expect(BFloat16(.infinity).bitPattern == 0x7F80)
        #expect(Float(BFloat16(.nan)).isNaN)
        #expect(Float(BFloat16(Float(bitPattern: 0x7F80_0001))).isNaN)
        #expect(Float(BFloat16(.greatestFiniteMagnitude)) == .infinity)
    }

    @Test func scalarsAreACopyInRowMajorOrder() {
        var array = NDArray(scalars: (0..<6).map { Float($0) }, shape: [2, 3])
        let before = array.scalars(as: Float.self)
        #expect(before == [0, 1, 2, 3, 4, 5])
        var view = array.mutableView(as: Float.self)
        view[scalarAt: [1, 1]] = 9
        #expect(before[4] == 4 && array.scalars(as: Float.self)[4] == 9)
        #expect(NDArray(shape: [0, 3], scalarType: .int64).scalars(as: Int64.self) == [])
        #expect(NDArray(scalars: [true], shape: []).scalars() == [true])
    }

    @Test func scalarsOfAPartAreThoseOfThePart() {
        let array = NDArray(scalars: (0..<24).map { Int32($0) }, shape: [2, 3, 4])
        #expect(array.view(as: Int32.self).slice(at: [.all, 1..<2, 1..<3]).scalars() == [5, 6, 17, 18])
        let storage = (0..<6).map { Double($0) }
        #expect(NDArray.View(span: storage.span, shape: [3, 2], strides: [1, 3]).scalars() == [0, 3, 1, 4, 2, 5])
        #expect(NDArray.View(span: storage.span, shape: [3], strides: [0]).scalars() == [0, 0, 0])
    }

    // MARK: Values and copies

    @Test func aCopyKeepsItsElementsWhenTheOtherChanges() {
        var one = NDArray(scalars: [1, 2, 3] as [Float], shape: [3])
        let two = one
        var view = one.mutableView(as: Float.self)
        view[scalarAt: [0]] = 9
        let changed = one
        #expect(changed.view(as: Float.self)[scalarAt: [0]] == 9)
        #expect(two.view(as: Float.self)[scalarAt: [0]] == 1)
    }

    @Test func anArrayThatIsHeldOnceIsChangedWhereItLies() {
        var array = NDArray(shape: [1000], scalarType: .float32)
        let before = array.rawView().withUnsafeBytes { pointer, _, _ in pointer }
        for position in 0..<10 {
            var view = array.mutableView(as: Float.self)
            view[scalarAt: [position]] = 1
            array.mutableRawView().withUnsafeMutableBytes { pointer, _, _ in
                pointer.storeBytes(of: 2, toByteOffset: 4 * (position + 100), as: Float.self)
            }
        }
        #expect(array.rawView().withUnsafeBytes { pointer, _, _ in pointer } == before)
    }

    // MARK: Slices

    @Test func aSliceKeepsTheRankAndSharesTheElements() {
        let array = NDArray(scalars: (0..<24).map(Float.init), shape: [2, 3, 4])
        let slice = array.view(as: Float.self).slice(at: [1, 0..<2, .all])
        #expect(slice.rank == 3)
        #expect([slice.shape[0], slice.shape[1], slice.shape[2]] == [1, 2, 4])
        #expect(slice[scalarAt: [0, 1, 3]] == 19)
        let row = array.view(as: Float.self).slice(at: [1])
        #expect(row.isContiguous == true)
        #expect(row.contiguousElements?[11] == 23)
        let column = array.view(as: Float.self).slice(at: [.all, .all, 2...2])
        #expect(column.isContiguous == false && column.contiguousElements == nil)
        #expect(column[scalarAt: [1, 2, 0]] == 22)
        let tail = array.view(as: Float.self).slice(at: [1..., ...1, ..<3])
        #expect([tail.shape[0], tail.shape[1], tail.shape[2]] == [1, 2, 3])
        let ranges: [any NDArray.RangeExpression] = [0..<1, 2..<3]
        #expect(array.view(as: Float.self).slice(at: ranges)[scalarAt: [0, 0, 0]] == 8)
        #expect(array.rawView().slice(at: [1, 2, 3]).view(as: Float.self)[scalarAt: [0, 0, 0]] == 23)
    }

    @Test func aMutatingSliceWritesItsPartOnly() {
        var array = NDArray(shape: [3, 4], scalarType: .int32)
        var view = array.mutableView(as: Int32.self)
        var part = view.mutatingSlice(at: [.all, 1..<3])
        part.copyElements(fromContentsOf: [1, 2, 3, 4, 5, 6])
        view[scalarAt: [0, 0]] = 7
        #expect(elements(array) == [7, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0])
    }

    @Test func copyingFewerElementsLeavesTheRest() {
        var array = NDArray(scalars: [9, 9, 9, 9] as [Int32], shape: [2, 2])
        var view = array.mutableView(as: Int32.self)
        view.copyElements(from: [1, 2, 3].lazy.map(Int32.init))
        #expect(elements(array) == [1, 2, 3, 9])
        var column = array.mutableView(as: Int32.self).slice(at: [.all, 1..<2])
        column.copyElements(from: [5])
        #expect(elements(array) == [1, 5, 3, 9])
    }

    private func elements(_ array: NDArray) -> [Int32] {
        let span = array.view(as: Int32.self).contiguousElements!
        return (0..<span.count).map { span[$0] }
    }

    @Test func aViewOverASpanSeesItsElements() {
        let values: [Float] = [0, 1, 2, 3, 4, 5]
        let view = NDArray.View(span: values.span, shape: [3, 2], strides: [1, 3])
        #expect(view[scalarAt: [2, 1]] == 5 && view[scalarAt: [1, 0]] == 1)
        #expect(view.isContiguous == false)
        let raw = NDArray.RawView(bytes: values.span.bytes, byteOffset: 8, scalarType: .float32, shape: [2, 2])
        #expect(raw.view(as: Float.self)[scalarAt: [0, 0]] == 2)
        var target: [Int64] = [0, 0, 0, 0]
        var mutable = NDArray.MutableView(mutableSpan: target.mutableSpan, shape: [2, 2])
        mutable[scalarAt: [1, 0]] = 8
        #expect(target == [0, 0, 8, 0])
    }

    @Test func axesOfLengthOneAndNoElementsCountAsContiguous() {
        func isContiguous(_ shape: [Int], _ strides: [Int]) -> Bool {
            let array = NDArray(shape: shape, scalarType: .float32, strides: strides)
            return array.view(as: Float.self).isContiguous
        }
        #expect(isContiguous([1, 4], [100, 1]))
        #expect(isContiguous([2, 0], [7, 7]))
        #expect(isContiguous([], []))
        #expect(!isContiguous([2, 4], [5, 1]))
        #expect(!isContiguous([2, 2], [0, 1]))
    }

    @Test func descriptorsResolveDynamicLengths() {
        let dynamic = NDArrayDescriptor(scalarType: .float32, shape: [1, -1, 64])
        #expect(dynamic.hasDynamicShape && dynamic.rank == 3)
        let fixed = dynamic.resolvingDynamicDimensions([1, 5, 64])
        #expect(!fixed.hasDynamicShape)
        #expect(fixed.preferredStrides == [320, 64, 1])
        #expect(fixed.minimumByteCount == 1280)
        #expect(NDArrayDescriptor(scalarType: .uint4, shape: [3]).minimumByteCount == 2)
    }

    // MARK: Traps

    @Test func anArrayOfADynamicDescriptorTraps() async {
        await #expect(processExitsWith: .failure) {
            _ = NDArray(descriptor: NDArrayDescriptor(scalarType: .float32, shape: [-1]))
        }
    }

    @Test func aViewOfAnotherElementTypeTraps() async {
        await #expect(processExitsWith: .failure) {
            let array = NDArray(shape: [1], scalarType: .float32)
            _ = array.view(as: Int32.self).rank
        }
    }

    @Test func anIndexOutsideTraps() async {
        await #expect(processExitsWith: .failure) {
            let array = NDArray(shape: [2, 2], scalarType: .float32)
            _ = array.view(as: Float.self)[scalarAt: [0, 2]]
        }
        await #expect(processExitsWith: .failure) {
            let array = NDArray(shape: [2, 2], scalarType: .float32)
            _ = array.view(as: Float.self)[scalarAt: [0]]
        }
    }

    @Test func aSliceOutsideTraps() async {
        await #expect(processExitsWith: .failure) {
            let array = NDArray(shape: [2, 2], scalarType: .float32)
            _ = array.view(as: Float.self).slice(at: [0..<3]).rank
        }
    }

    @Test func aSpanThatIsTooShortTraps() async {
        await #expect(processExitsWith: .failure) {
            let values: [Float] = [1, 2, 3]
            _ = NDArray.View(span: values.span, shape: [2, 2]).rank
        }
    }

    @Test func aWrongNumberOfScalarsTraps() async {
        await #expect(processExitsWith: .failure) { _ = NDArray(scalars: [1, 2] as [Float], shape: [3]) }
        await #expect(processExitsWith: .failure) { _ = NDArray(scalars: [1, 2] as [Float], shape: [1]) }
    }

    @Test func aSizeThatOverflowsTraps() async {
        await #expect(processExitsWith: .failure) { _ = NDArray(shape: [1 << 40, 1 << 40], scalarType: .float32) }
        await #expect(processExitsWith: .failure) { _ = NDArray(shape: [-1], scalarType: .float32) }
    }
}
