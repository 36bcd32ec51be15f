"""The operators that Unity's packages import, from their manuals."""

# com.unity.sentis 2.1 and com.unity.ai.inference 2.2: packages 3.x and 4.x of ML-Agents.
SENTIS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Bernoulli Cast CastLike
    Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace Div
    Dropout Einsum Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual GridSample Hardmax HardSigmoid HardSwish Identity InstanceNormalization IsInf
    IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LRN LSTM MatMul Max MaxPool Mean Min Mish Mod
    Mul Multinomial Neg NonMaxSuppression NonZero Not OneHot Or Pad Pow PRelu RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RoiAlign Round ScatterElements
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
    Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """.split()
)
# com.unity.barracuda 2.0: packages 1.x and 2.x.
BARRACUDA = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
    Constant ConstantOfShape Conv ConvTranspose Cos Cosh DepthToSpace Div Dropout Elu Equal Exp Expand Flatten Floor
    Gather Gemm GlobalAveragePool GlobalMaxPool Greater Identity ImageScaler InstanceNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LRN LSTM MatMul Max MaxPool Mean Min Mul Multinomial Neg NonMaxSuppression NonZero Not
    OneHot Or Pad Pow PRelu RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize Round Selu Shape Sigmoid Sin Sinh Slice Softmax
    SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Unsqueeze Upsample Where Xor
    """.split()
)
